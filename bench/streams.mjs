/**
 * Streams: what a clear of the allocator's cache finds in flight, what its drain costs, and what a boundary costs the engine thread when its
 * bytes are copied there and when they are leased to the thread that writes them. Needs no model, no network and no other program.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { mean, median, percentile, ratioOfMeans, round } from './lib/ratio.mjs';

const STATES = ['0.95 MB', '4 MB', '32 MB'];
const ROWS = ['4 MB', '32 MB'];
const ROUNDS = 3;

export async function run({ pairs, log, device = 'cpu' }) {
  // Before the addon is loaded: the hook between drain and clear is one of its test functions.
  process.env.TIDEMARK_TEST_OPS = '1';
  const { mlx } = await import('../dist/engine-thread/mlx/binding.js');
  const native = mlx(); // main keeps the addon loaded while Workers come and go
  const info = { device, mlx: native.mlxVersion(), deviceInfo: native.deviceInfo(device), loadAverage: [loadavg()] };
  const results = [...(await inFlight(device, log))];
  for (const [part, sizes] of [
    ['state', STATES],
    ['rows', ROWS],
  ]) {
    for (const size of sizes) {
      log(`${part === 'state' ? 'recurrent state' : 'rows of a finished sequence'} of ${size}`);
      results.push(stallOf(part, size, await measure({ device, part, size, rounds: pairs ?? 30 })));
      const { copied, leased } = results.at(-1);
      log(`  copied ${copied.mean}x a plain copy [${copied.low}, ${copied.high}], leased ${leased.mean}x [${leased.low}, ${leased.high}]`);
    }
  }
  info.loadAverage.push(loadavg());
  return { results, info };
}

/** Of what was queued in that round: how much the clear found. */
const shareLeft = ({ tookMs, leftMs }) => leftMs / (tookMs + leftMs);

/** Runs a case of lib/streams-worker.mjs to its end. */
async function inWorker(workerData, transferList = []) {
  const worker = new Worker(new URL('./lib/streams-worker.mjs', import.meta.url), { workerData, transferList });
  const found = await new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
    worker.once('exit', (code) => reject(new Error(`the Worker ended with ${code}`)));
  });
  await worker.terminate();
  return found;
}

async function inFlight(device, log) {
  const { chainMs, products, size, ours, bare, drainUs, clearUs, stepUs } = await inWorker({ task: 'inFlight', device, rounds: ROUNDS });
  log(
    `chain of ${products} products of ${size}^3, ${round(chainMs)} ms; left at the clear: ours ${ours.map((r) => round(r.leftMs))} ms, another stream drained ${bare.map((r) => round(r.leftMs))} ms`,
  );
  const share = drainUs / 512 / stepUs;
  return [
    {
      name: 'in flight at the clear',
      unit: 'ms',
      chainMs: round(chainMs),
      products,
      ours: ours.map(({ tookMs, leftMs }) => ({ tookMs: round(tookMs), leftMs: round(leftMs) })),
      anotherStreamDrained: bare.map(({ tookMs, leftMs }) => ({ tookMs: round(tookMs), leftMs: round(leftMs) })),
      shareLeft: { ours: round(median(ours.map(shareLeft))), anotherStreamDrained: round(median(bare.map(shareLeft))) },
      floor: { oursAtMost: 0.01, otherAtLeast: 0.9, of: 'the time that round took, median' },
      ok: median(ours.map(shareLeft)) <= 0.01 && median(bare.map(shareLeft)) >= 0.9,
    },
    {
      name: 'drain of an idle stream',
      unit: 'microseconds',
      drain: round(drainUs),
      wholeClear: round(clearUs),
      decodeLikeStep: round(stepUs),
      shareOfAStep: round(share),
      floor: { atMost: 0.01 },
      ok: share <= 0.01,
    },
  ];
}

export async function measure({ device, part, size, rounds }) {
  const { processRegistry } = await import('../dist/host/process-registry.js');
  const { openStoreHub } = await import('../dist/host/store-hub.js');
  const { createRestoreMemory } = await import('../dist/shared/blocks/restore-channel.js');
  const { createSessionMemory } = await import('../dist/shared/session/index.js');
  const dir = mkdtempSync(join(tmpdir(), 'tidemark-bench-streams-'));
  const registry = processRegistry();
  const { hub, degraded } = await openStoreHub(registry, { dir, maxBytes: 4_000_000_000, blockSize: 256 });
  if (hub === null) throw new Error(`no store in ${dir}: ${degraded.message}`);
  try {
    const stores = [];
    for (const leaseFromBytes of [Number.POSITIVE_INFINITY, 0]) {
      const memory = createSessionMemory({
        stagingRoot: hub.stagingRoot,
        hub: hub.words,
        number: hub.nextSessionNumber(),
        limits: { pendingMaxBytes: 128 * 1024 * 1024, overflow: 'write-through' },
        restore: createRestoreMemory(),
      });
      const hubPort = await hub.attachSession(memory);
      stores.push({
        memory,
        cacheDir: hub.dir,
        mode: hub.mode,
        hubPort,
        blockSize: 256,
        restoreDeadlineMs: 10_000,
        salt: '',
        stateCodec: 'fp32',
        leaseFromBytes,
      });
    }
    hub.ref();
    const ports = stores.map(({ hubPort }) => hubPort);
    const found = await inWorker({ task: 'stall', device, part, size, rounds, shared: registry.shared, stores }, ports);
    for (const { memory } of stores) await hub.detachSession(memory.number, 30_000);
    for (const { captured, durable, evicted } of found.ledgers) {
      if (captured !== durable + evicted) throw new Error(`${captured - durable - evicted} of ${captured} boundaries were not stored`);
    }
    return found;
  } finally {
    hub.unref();
    await hub.release(10_000);
    rmSync(dir, { recursive: true, force: true });
  }
}

function stallOf(part, size, { samples, nextStep, bytes, leases }) {
  const plain = [...samples.plain, ...samples.again];
  return {
    name: `${part === 'state' ? 'recurrent state' : 'rows of a finished sequence'} of ${size}`,
    bytes,
    leases,
    unit: 'times a plain copy of the same bytes',
    copied: ratioOfMeans(samples.copied, plain),
    leased: ratioOfMeans(samples.leased, plain),
    selfRatio: ratioOfMeans(samples.again, samples.plain),
    microseconds: { copied: figures(samples.copied), leased: figures(samples.leased), plain: figures(plain) },
    stepBehindIt: { copied: figures(nextStep.copied), leased: figures(nextStep.leased) },
    ok: leases > 0,
  };
}

function figures(ms) {
  const us = (value) => round(value * 1000);
  return ms.length === 0 ? null : { mean: us(mean(ms)), p50: us(percentile(ms, 0.5)), p99: us(percentile(ms, 0.99)) };
}
