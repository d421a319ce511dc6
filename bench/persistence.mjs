/**
 * What storing every boundary costs: prefill throughput and the p99 time between decoded tokens with the cache on against off,
 * and prefill throughput again with the disk standing still for 2 s in the middle. One process, two engines, runs taking turns.
 *
 * Each run has a prompt of its own, so that nothing is found in the cache; what is left to write after a run is written
 * (and timed apart) before the next one begins.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { processRegistry } from '../dist/host/process-registry.js';
import { openStoreHub } from '../dist/host/store-hub.js';
import { createEngine } from '../dist/index.js';
import { pairs as inPairs, median, percentile, round, seededTokens, summarize, verdict } from './lib/ratio.mjs';
import { StallingDisk } from './lib/stalling-disk.mjs';
import { threadCpu, usedBetween } from './lib/thread-cpu.mjs';

const TIDE = fileURLToPath(new URL('../models/tide-5m', import.meta.url));
const PROMPT = 4096;
/** Crosses one block's end. */
const DECODE = 384;
const STALL_MS = 2_000;
const PREFILL_FLOOR = { cpu: 0.97, gpu: 0.99 };
const DECODE_CEILING = 1.05;
const TARGET = 0.99;
/** BLAS threads go on spinning for a moment after their last product; the next run shall not pay for it. */
const SETTLE_MS = 60;

export async function run({ pairs, log, device = 'cpu', model = TIDE }) {
  const count = pairs ?? 20;
  const dir = mkdtempSync(join(tmpdir(), 'tidemark-bench-persistence-'));
  const disk = new StallingDisk();
  // The engine's cache joins this hub, whose threads have the hooks; a run without a stall pays one load of a word per operation.
  const { hub, degraded } = await openStoreHub(processRegistry(), { dir, maxBytes: 8e9, blockSize: 256, tuning: disk.tuning });
  if (hub === null) throw new Error(`no store in ${dir}: ${degraded.message}`);
  const info = { loadAverage: [loadavg()], device, model, promptTokens: PROMPT, decodedTokens: DECODE, stallMs: STALL_MS, target: TARGET };
  const engines = {};
  try {
    for (const [name, cache] of Object.entries({ off: false, on: { dir, maxBytes: 8e9 } })) engines[name] = await createEngine({ model, device, cache });
    const bench = new Bench(engines, disk, engines.on.model.vocabSize);
    for (const name of ['off', 'on', 'off', 'on']) await bench.answer(name, DECODE);
    const plain = await bench.measure('persistence', count, log, DECODE, false);
    // A stall that begins in the middle: the answer itself is not looked at, so it is short.
    const stalled = await bench.measure('with a stalled disk', count, log, 1, true);
    info.loadAverage.push(loadavg());
    info.flushMs = { after: round(median(bench.flushMs)), afterStall: round(median(bench.flushMsStalled)) };
    info.stall = { heldOperations: median(bench.stalls.map((stall) => stall.operations)), longestHoldMs: median(bench.stalls.map((stall) => stall.longestMs)) };
    info.cpuMs = { prefillAndDecode: cpuOf(plain), prefillAlone: cpuOf(stalled) };
    info.boundaries = engines.on.stats().boundaries;
    info.backpressureMs = engines.on.stats().store.backpressureMs;
    requireStored(info.boundaries);
    if (info.stall.longestHoldMs < STALL_MS / 4) throw new Error(`the stall held nothing back: ${JSON.stringify(info.stall)}`);
    const floor = { atLeast: PREFILL_FLOOR[device] };
    return {
      results: [
        throughput('prefill throughput, persistence on over off', plain, floor),
        throughput(`prefill throughput with the disk stalled for ${STALL_MS / 1000} s, on over off`, stalled, floor),
        interToken(plain),
      ],
      info,
    };
  } finally {
    disk.thaw();
    for (const engine of Object.values(engines)) await engine.close();
    await hub.release(10_000);
    rmSync(dir, { recursive: true, force: true });
  }
}

class Bench {
  flushMs = [];
  flushMsStalled = [];
  stalls = [];
  #engines;
  #disk;
  #vocabulary;
  #seed = 1000;

  constructor(engines, disk, vocabulary) {
    this.#engines = engines;
    this.#disk = disk;
    this.#vocabulary = vocabulary;
  }

  /** One answer. `stall`: the disk stands still from a third of the prompt on. */
  async answer(name, decode, stall = false) {
    await sleep(SETTLE_MS);
    const engine = this.#engines[name];
    const disk = this.#disk;
    const tokens = seededTokens(PROMPT, this.#seed++, this.#vocabulary);
    let frozen = false;
    const freeze = ({ phase, tokens: done }) => {
      if (frozen || phase !== 'prefill' || done < PROMPT / 3) return;
      frozen = true;
      disk.freeze(STALL_MS);
    };
    if (stall) engine.on('progress', freeze);
    const gaps = [];
    const cpu = threadCpu();
    const generation = engine.generate({ tokens, maxTokens: decode + 1, ignoreEos: true, temperature: 0, repetitionPenalty: 1 });
    let last = null;
    for await (const chunk of generation) {
      const now = performance.now();
      // The first token ends the prefill; a chunk may hold several tokens when this thread was late.
      if (last !== null && chunk.tokenIds.length > 0) gaps.push((now - last) / chunk.tokenIds.length);
      last = now;
    }
    engine.off('progress', freeze);
    const { usage, timings } = await generation.result;
    if (usage.cachedTokens !== 0 || usage.completionTokens !== decode + 1) throw new Error(`no such run was asked for: ${JSON.stringify(usage)}`);
    if (stall) {
      if (!frozen) throw new Error('the engine told no progress, so that the disk was never stalled');
      this.stalls.push(await disk.report());
    }
    if (name === 'on') {
      const begin = performance.now();
      await engine.flush();
      (stall ? this.flushMsStalled : this.flushMs).push(performance.now() - begin);
    }
    const used = usedBetween(cpu, threadCpu());
    return { used, tokensPerSecond: (1000 * PROMPT) / timings.firstTokenMs, p50: percentile(gaps, 0.5), p99: percentile(gaps, 0.99) };
  }

  /** Pairs of on and off, and on against itself. */
  async measure(what, count, log, decode, stall) {
    const runs = { on: [], off: [], again: [] };
    await inPairs(
      async () => {
        const found = await this.answer('on', decode, stall);
        (runs.on.length > runs.again.length && runs.off.length === runs.on.length ? runs.again : runs.on).push(found);
        return found.tokensPerSecond;
      },
      async () => {
        const found = await this.answer('off', decode);
        runs.off.push(found);
        return found.tokensPerSecond;
      },
      count,
      (i, on, off) => log(`${what}, pair ${i + 1} of ${count}: ${round(on)} tokens/s on, ${round(off)} off`),
    );
    return runs;
  }
}

function throughput(name, runs, floor) {
  const speed = (run) => run.tokensPerSecond;
  const found = verdict(name, ratios(runs.on, runs.off, speed), ratios(runs.again, runs.on, speed), floor, 'times');
  const middle = (list) => round(median(list.map(speed)));
  return { ...found, targetMet: found.ratio.median >= TARGET, tokensPerSecond: { on: middle(runs.on), off: middle(runs.off) } };
}

function interToken(runs) {
  const p99 = (run) => run.p99;
  const found = verdict(
    'decode, p99 between tokens, persistence on over off',
    ratios(runs.on, runs.off, p99),
    ratios(runs.again, runs.on, p99),
    { atMost: DECODE_CEILING },
    'times',
  );
  const figures = (list) => ({ p50: round(median(list.map((run) => run.p50))), p99: round(median(list.map(p99))) });
  return { ...found, milliseconds: { on: figures(runs.on), off: figures(runs.off) } };
}

/** Medians for one run, flush included, and the engine thread's as a ratio of on over off. */
function cpuOf(runs) {
  if (runs.on[0].used === null) return null;
  const middle = (list) => Object.fromEntries(Object.keys(list[0].used).map((kind) => [kind, round(median(list.map((run) => run.used[kind])))]));
  const engine = ({ used }) => used.engine;
  return {
    on: middle(runs.on),
    off: middle(runs.off),
    engineOnOverOff: summarize(ratios(runs.on, runs.off, engine)),
    self: summarize(ratios(runs.again, runs.on, engine)),
  };
}

function ratios(a, b, of) {
  return a.map((run, i) => of(run) / of(b[i]));
}

/** A cache that lost its boundaries on the way is cheap, and no figure. */
function requireStored({ captured, durable, evicted, superseded, pending, written }) {
  if (pending + written > 0 || captured !== durable + evicted + superseded)
    throw new Error(`of ${captured} boundaries only ${durable + evicted + superseded} reached the disk`);
}
