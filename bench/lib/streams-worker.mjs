/**
 * The engine thread of the benchmark 'streams'. workerData: { task: 'inFlight', device, rounds } or { task: 'stall', device, part, size,
 * rounds, shared, stores }. Posts what it measured.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { ArraysCache, KvCache } from '../../dist/engine-thread/cache/index.js';
import { EngineStoreClient } from '../../dist/engine-thread/engine-store-client.js';
import { mlx } from '../../dist/engine-thread/mlx/binding.js';
import { leaseAccess } from '../../dist/engine-thread/mlx/lease-access.js';
import { setBlasThreads } from '../../dist/engine-thread/mlx/memory.js';
import { clearThreadStreams, syncAndClearCache } from '../../dist/engine-thread/mlx/metal-sync.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { tensorReader } from '../../dist/engine-thread/mlx/read-many.js';
import { attachSession } from '../../dist/shared/session/index.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { median, seededTokens } from './ratio.mjs';

const native = mlx();
const { device } = workerData;
const CHAIN_MS = 70;
const BLOCK = 256;
const unlocked = { acquire: () => true, release: () => undefined };
const clocked = (work) => {
  const begin = performance.now();
  work();
  return performance.now() - begin;
};

function inFlight() {
  const own = mx.newStream(device);
  mx.setEngineStream(own);
  setBlasThreads(1);
  const size = device === 'gpu' ? 8192 : 512;
  const dtype = device === 'gpu' ? 'bfloat16' : 'float32';
  const factor = mx.mul(mx.full([size, size], 1, dtype, own), 1 / size, own);
  mx.evaluate([factor]);
  /** Products that depend on each other, queued. */
  const queue = (products) =>
    mx.scope(() => {
      let t = factor;
      for (let i = 0; i < products; i++) t = mx.matmul(t, factor, own);
      mx.asyncEvaluate([t]);
      return mx.keep(t);
    });
  const timed = (products) =>
    clocked(() => {
      const t = queue(products);
      mx.synchronize(own);
      mx.release(t);
    });
  timed(8);
  const products = Math.max(4, Math.round(CHAIN_MS / (median([timed(16), timed(16), timed(16)]) / 16)));
  const chainMs = median([1, 2, 3].map(() => timed(products)));
  native.testWatchClears(own);
  const rounds = (clear) =>
    Array.from({ length: workerData.rounds }, () => {
      const t = queue(products);
      const tookMs = clocked(clear);
      mx.synchronize(own);
      mx.release(t);
      const [leftMs] = native.testInFlightAtClears();
      // The hook's own wait is not the clear's.
      return { tookMs: tookMs - leftMs, leftMs };
    });
  const ours = rounds(() => syncAndClearCache(own, unlocked));
  const bare = rounds(() => {
    native.testSynchronizeDefault();
    native.clearCache();
  });
  /** About what one token of a small model is: a few hundred operations, evaluated. */
  const step = () =>
    clocked(() =>
      mx.scope(() => {
        let t = mx.full([1, 256], 0.5, 'float32', own);
        for (let i = 0; i < 300; i++) t = mx.mul(t, 1.001, own);
        mx.evaluate([t]);
      }),
    );
  const times = (count, work) => median(Array.from({ length: count }, work)) * 1000;
  step();
  return {
    chainMs,
    products,
    size,
    ours,
    bare,
    stepUs: times(50, step),
    drainUs: times(200, () => clocked(() => mx.synchronize(own))),
    clearUs: times(50, () => clocked(() => syncAndClearCache(own, unlocked))),
  };
}

/** Layers whose state, or whose rows of four blocks, are about as large as the case is called. */
const SHAPES = {
  state: { '0.95 MB': { layers: 6, state: [8, 64, 72] }, '4 MB': { layers: 18, state: [14, 64, 64] }, '32 MB': { layers: 24, state: [20, 128, 128] } },
  rows: { '4 MB': { layers: 4, heads: 2, dim: 64 }, '32 MB': { layers: 8, heads: 4, dim: 128 } },
};
const BLOCKS = { state: 1, rows: 4 };

function stall() {
  const { shared, stores, part, size, rounds } = workerData;
  const self = new ThreadTable(shared.threads).enter('engine', 'engine');
  const stream = mx.openEngineStream(device);
  setBlasThreads(1);
  const shape = SHAPES[part][size];
  const isState = part === 'state';
  const model = { fingerprint: 'f'.repeat(64), device, compute: 'float32', stream, hasFixedState: isState, hasSliceableState: !isState, causal: {} };
  const fail = (message) => {
    throw new Error(message);
  };
  const access = leaseAccess(shared, self);
  const clients = stores.map((store) => new EngineStoreClient(store, self, model, [], { warn: fail, degraded: (_code, message) => fail(message) }, access));
  const sessions = stores.map((store) => {
    // Where the device copies faster into memory that it knows.
    if (device === 'gpu') mx.registerHostMemory(new Uint8Array(store.memory.arena));
    return attachSession(store.memory, self);
  });
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const settle = () => {
    const until = performance.now() + 60_000;
    while (sessions.some((session) => session.itemsInFlight > 0)) {
      if (performance.now() > until) fail('writer and store worker did not keep up within 60 s');
      // A bell that waits for the end of the engine's round rings here.
      for (const client of clients) client.endOfRound?.(false);
      Atomics.wait(pause, 0, 0, 1);
    }
    for (const client of clients) client.reapLeases();
  };
  const makeCaches = () =>
    Array.from({ length: shape.layers }, () =>
      isState
        ? new ArraysCache([{ shape: shape.state, dtype: 'float32' }])
        : new KvCache({ heads: shape.heads, keyDim: shape.dim, valueDim: shape.dim, dtype: 'float32' }),
    );
  const step = (caches, beside = null) =>
    mx.scope(() => {
      for (const cache of caches) {
        if (isState) {
          cache.set(0, mx.add(mx.mul(cache.get(0, stream), 0.5, stream), 1, stream));
          cache.advance(BLOCK);
        } else {
          const row = mx.add(mx.zeros([1, shape.heads, BLOCK, shape.dim], 'float32', stream), 0.5, stream);
          cache.append(row, row, BLOCK, stream);
        }
      }
      const wanted = [...caches.flatMap((cache) => cache.tensors()), ...(beside?.built() ?? [])];
      mx.asyncEvaluate(wanted);
      beside?.running();
      mx.evaluate(wanted);
    });
  const samples = { copied: [], leased: [], plain: [], again: [] };
  const nextStep = { copied: [], leased: [] };
  const blocks = BLOCKS[part];
  let bytes = 0;
  let room = null;
  let requestNo = 0;

  /** One plain copy of the same bytes, with one native call, into memory that was touched before. */
  const plainCopy = (caches) => {
    const pieces = [];
    let to = 0;
    for (const t of caches.flatMap((cache) => cache.tensors())) {
      pieces.push(t, 0, mx.nbytes(t), to);
      to += mx.nbytes(t);
    }
    bytes = to;
    if (room === null) {
      room = new Uint8Array(new SharedArrayBuffer(to)).fill(1);
      if (device === 'gpu') mx.registerHostMemory(room);
    }
    const packed = Float64Array.from(pieces);
    return clocked(() => tensorReader.readMany(packed, room));
  };

  const TURNS = ['plain', 'copied', 'again', 'leased'];
  const WARM_UP = 12;
  for (let round = -WARM_UP; round < 4 * rounds; round++) {
    const turn = TURNS[(round + WARM_UP) % TURNS.length];
    const client = clients[turn === 'leased' ? 1 : 0];
    requestNo++;
    const recorder = client.recorder({ requestNo, requestId: `streams-${requestNo}`, persist: isState ? 'boundary' : 'finish' }, 1);
    const tokens = seededTokens((blocks + 1) * BLOCK, requestNo);
    const caches = makeCaches();
    step(caches, isState ? recorder.announce(caches, tokens, BLOCK) : null);
    for (let block = 1; block < blocks; block++) step(caches);
    const end = blocks * BLOCK;
    const handOver = () => {
      if (isState) recorder.capture(caches, tokens, BLOCK, true);
      else recorder.finish(caches, tokens, end, false, true);
      client.endOfRound?.(true);
    };
    const isPlain = turn === 'plain' || turn === 'again';
    const took = isPlain ? plainCopy(caches) : clocked(handOver);
    if (round >= 0) samples[turn].push(took);
    if (isPlain) handOver();
    else if (isState) {
      // Its buffers are held meanwhile, so that the next states need others.
      const next = clocked(() => step(caches));
      if (round >= 0) nextStep[turn].push(next);
    }
    settle();
    recorder.close();
    for (const cache of caches) cache.release();
    settle();
  }
  const ledgers = sessions.map((session) => session.ledger.read());
  const leases = clients[1].leasesGiven;
  for (const client of clients) client.close();
  clearThreadStreams();
  self.leave();
  return { samples, nextStep, bytes, leases, ledgers };
}

parentPort.postMessage(workerData.task === 'inFlight' ? inFlight() : stall());
