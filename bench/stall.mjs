/**
 * What a boundary costs the engine thread from having the pass's result to going on, against a plain copy of the same bytes
 * into warm memory. The real recorder, session, snapshot writer and store worker; the latter two keep up. What the recorder
 * does while the pass is computed (hash, lookup, file headers) is shown apart, as `besideThePass`.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { mlx } from '../dist/engine-thread/mlx/binding.js';
import { processRegistry } from '../dist/host/process-registry.js';
import { openStoreHub } from '../dist/host/store-hub.js';
import { createRestoreMemory } from '../dist/shared/blocks/restore-channel.js';
import { createSessionMemory } from '../dist/shared/session/index.js';
import { mean, median, percentile, ratioOfMeans, round } from './lib/ratio.mjs';

const CASES = ['tide-5m', '4 MB', '32 MB'];
const FLOOR = 2;
const TARGET = 1.25;
const BLOCK = 256;

export async function run({ pairs, log }) {
  mlx(); // main keeps the addon loaded while Workers come and go
  const info = { loadAverage: [loadavg()], target: TARGET };
  const results = [];
  for (const name of CASES) {
    log(`boundary of ${name}`);
    results.push(resultOf(name, await measure(name, 3 * (pairs ?? 30))));
    const { ratio, microseconds } = results.at(-1);
    log(`  ${ratio.mean}x [${ratio.low}, ${ratio.high}], capture p50 ${microseconds.capture.p50} us, plain copy p50 ${microseconds.plain.p50} us`);
  }
  info.loadAverage.push(loadavg());
  return { results, info };
}

export async function measure(name, rounds) {
  const dir = mkdtempSync(join(tmpdir(), 'tidemark-bench-stall-'));
  const registry = processRegistry();
  const { hub, degraded } = await openStoreHub(registry, { dir, maxBytes: 1_000_000_000, blockSize: BLOCK });
  if (hub === null) throw new Error(`no store in ${dir}: ${degraded.message}`);
  try {
    const memory = createSessionMemory({
      stagingRoot: hub.stagingRoot,
      hub: hub.words,
      number: hub.nextSessionNumber(),
      limits: { pendingMaxBytes: 512 * 1024 * 1024, overflow: 'write-through' },
      restore: createRestoreMemory(),
    });
    const hubPort = await hub.attachSession(memory);
    const store = { memory, cacheDir: hub.dir, mode: hub.mode, hubPort, blockSize: BLOCK, restoreDeadlineMs: 10_000, salt: '', stateCodec: 'fp32' };
    hub.ref();
    const worker = new Worker(new URL('./lib/stall-worker.mjs', import.meta.url), {
      workerData: { shared: registry.shared, store, name, rounds, warmUp: 16 },
      transferList: [hubPort],
    });
    const found = await new Promise((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
      worker.once('exit', (code) => reject(new Error(`the Worker ended with ${code}`)));
    });
    await worker.terminate();
    await hub.detachSession(memory.number, 30_000);
    const { captured, durable, evicted } = found.ledger;
    if (captured !== durable + evicted)
      throw new Error(`${captured - durable - evicted} of ${captured} boundaries were not stored: ${JSON.stringify(found.ledger)}`);
    return found;
  } finally {
    hub.unref();
    await hub.release(10_000);
    rmSync(dir, { recursive: true, force: true });
  }
}

function resultOf(name, { samples, bytes }) {
  const ratio = ratioOfMeans(samples.capture, samples.plain);
  const { capture, plain, beside } = samples;
  return {
    name: `boundary of ${name}`,
    bytes,
    unit: 'times a plain copy',
    ratio,
    selfRatio: ratioOfMeans(samples.again, samples.plain),
    ratioOfMedians: round(median(capture) / median(plain)),
    microseconds: { capture: figures(capture), plain: figures(plain), besideThePass: figures(beside) },
    plainGBPerSecond: round(bytes / 1e6 / median(plain)),
    floor: { atMost: FLOOR },
    ok: ratio.low <= FLOOR,
    targetMet: ratio.mean <= TARGET,
  };
}

/** Microseconds. */
function figures(ms) {
  const us = (value) => round(value * 1000);
  return { mean: us(mean(ms)), min: us(Math.min(...ms)), p50: us(percentile(ms, 0.5)), p99: us(percentile(ms, 0.99)) };
}
