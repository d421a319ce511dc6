/**
 * A stand-in for the engine thread: real MLX arrays on its own stream, and the product's boundary store over a session.
 * Does one operation per message; between them it turns its loop.
 *
 * workerData: { shared, memory }
 */
import { parentPort, workerData } from 'node:worker_threads';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { ArraysCache, captureState } from '../../dist/engine-thread/cache/index.js';
import { setBlasThreads } from '../../dist/engine-thread/mlx/memory.js';
import { clearThreadStreams } from '../../dist/engine-thread/mlx/metal-sync.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { tensorReader } from '../../dist/engine-thread/mlx/read-many.js';
import { openEngineStream } from '../../dist/engine-thread/mlx/streams.js';
import { CopyPlan } from '../../dist/shared/blocks/copy-plan.js';
import { attachSession } from '../../dist/shared/session/index.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';

const BLOCK = 256;
const SEQUENCE_BLOCKS = 8;
/** However slow the machine is. */
const LEAST_ROUNDS = 20;
const LAYERS = 30;
/** A delta net's convolution window and recurrent matrix in float32, for each of 30 layers. */
const SHAPES = {
  '4 MB': { conv: [3, 1024], state: [8, 64, 64] },
  '32 MB': { conv: [3, 6144], state: [16, 128, 128] },
};
/** 'again' is a plain copy as well: their ratio shows what the method scatters. Each turn follows each other one. */
const TURNS = ['save', 'plain', 'prepared', 'again'];
const ORDERS = [TURNS, [0, 2, 1, 3], [3, 1, 0, 2], [1, 0, 3, 2]].map((order) => order.map((turn) => TURNS[turn] ?? turn));

const { shared, memory } = workerData;
const self = new ThreadTable(shared.threads).enter('engine', 'engine');
const stream = openEngineStream('cpu');
setBlasThreads(1);
const session = attachSession(memory, self);
const store = new BoundarySnapshotStore(session);
const pause = new Int32Array(new SharedArrayBuffer(4));

let sequences = 0;
let id = '';
let caches = [];
let position = 0;

function begin({ conv, state }) {
  if (id !== '') store.cleanupRequest(id);
  for (const cache of caches) cache.release();
  id = `bench-${++sequences}`;
  position = 0;
  const specs = [conv, state].map((shape) => ({ shape, dtype: 'float32' }));
  caches = Array.from({ length: LAYERS }, () => new ArraysCache(specs));
}

/**
 * One pass: every array is computed anew. Returns what a boundary at its end captures, evaluated with it; `beside` is called
 * with it while the pass is computed.
 */
function step(beside = () => undefined) {
  position += BLOCK;
  return mx.scope(() => {
    for (const cache of caches) {
      for (let i = 0; i < cache.specs.length; i++) cache.set(i, mx.add(mx.mul(cache.get(i, stream), 0.5, stream), 1, stream));
      cache.advance(BLOCK);
    }
    const captured = captureState(caches, position, stream);
    const wanted = [...caches.flatMap((cache) => cache.tensors()), ...captured.flatMap((capture) => capture.tensors())];
    mx.asyncEvaluate(wanted);
    beside(captured);
    mx.evaluate(wanted);
    return captured;
  });
}

/** The same arrays as the state of the next boundary. */
function again() {
  position += BLOCK;
  return mx.scope(() => {
    for (const cache of caches) cache.advance(BLOCK);
    const captured = captureState(caches, position, stream);
    mx.evaluate(captured.flatMap((capture) => capture.tensors()));
    return captured;
  });
}

function letGo(captured) {
  mx.releaseAll(captured.flatMap((capture) => capture.tensors()));
}

/** All of it in one call, as an app with a store of its own makes it. */
function save(captured) {
  const layers = () => captured.map((capture) => capture.toLayerState());
  const begin = performance.now();
  const result = store.save(id, position, layers, { blockSize: BLOCK, onCopied: () => letGo(captured) });
  return { ms: performance.now() - begin, how: result.ok ? result.how : result.reason };
}

/** The first half of a save, beside the pass; its place, and what is to be let go behind it. */
function place(captured) {
  const plan = new CopyPlan();
  const layers = captured.map((capture) => capture.toLayerState());
  const placed = store.place(id, position, layers, { blockSize: BLOCK }, plan);
  if (placed === null) throw new Error('there is no room while the writer keeps up');
  return { plan, placed, tensors: captured.flatMap((capture) => capture.tensors()) };
}

const nothingBesides = () => undefined;

/** The second half, behind the pass, as the engine does it. The writer's bell is rung beside the next pass. */
function publish({ plan, placed, tensors }) {
  const begin = performance.now();
  plan.run();
  const result = placed.publish(nothingBesides);
  mx.releaseAll(tensors);
  const ms = performance.now() - begin;
  session.writerBell.ring();
  return { ms, how: result.ok ? result.how : result.reason };
}

/** Tensor, from, size, to: for one native call that copies all of them. */
function piecesOf() {
  let to = 0;
  const pieces = caches.flatMap((cache) =>
    cache.tensors().flatMap((t) => {
      const size = mx.nbytes(t);
      to += size;
      return [t, 0, size, to - size];
    }),
  );
  return { pieces: Float64Array.from(pieces), bytes: to };
}

/** Writer and its sweeping have ended: the next save finds it idle. */
function settle(limitMs = 120_000) {
  const until = performance.now() + limitMs;
  while (session.itemsInFlight > 0 || session.condemned > 0) {
    if (performance.now() > until) throw new Error(`the writer did not end within ${limitMs} ms`);
    Atomics.wait(pause, 0, 0, 1);
  }
}

let room = new Uint8Array(0);

function plainCopy({ pieces, bytes }) {
  if (room.length !== bytes) room = new Uint8Array(new SharedArrayBuffer(bytes)).fill(1);
  const begin = performance.now();
  tensorReader.readMany(pieces, room);
  return performance.now() - begin;
}

/**
 * One turn behind a pass of its own, the writer idle before. Whatever is timed, the boundary is saved in the end, so that every
 * turn finds the same behind it. Only what comes right behind the pass is timed: later the bytes lie in this core's cache.
 */
function turn(kind, size) {
  if (position === 0 || position === SEQUENCE_BLOCKS * BLOCK) begin(SHAPES[size]);
  settle();
  let prepared = null;
  const captured = step((those) => {
    if (kind !== 'save') prepared = place(those);
  });
  const pieces = piecesOf();
  const copied = kind === 'plain' || kind === 'again' ? plainCopy(pieces) : null;
  const { ms, how } = kind === 'save' ? save(captured) : publish(prepared);
  if (how !== 'queued') throw new Error(`a save with an idle writer ended as ${how}`);
  return { ms: copied ?? ms, bytes: pieces.bytes };
}

const operations = {
  /** Milliseconds of each turn, for as many rounds as fit into `budgetMs`, `most` at most. */
  stall(size, { budgetMs, most, warmUp }) {
    const samples = Object.fromEntries(TURNS.map((kind) => [kind, []]));
    let bytes = 0;
    const until = performance.now() + budgetMs;
    for (let round = -warmUp; round < most && (round < LEAST_ROUNDS || performance.now() < until); round++) {
      for (const kind of ORDERS[(round + warmUp) % ORDERS.length]) {
        const took = turn(kind, size);
        bytes = took.bytes;
        if (round >= 0) samples[kind].push(took.ms);
      }
    }
    settle();
    return { samples, bytes, ledger: session.ledger.read() };
  },

  /** Saves one boundary after the other while `ms` last: how each ended and how long it took. */
  saves(size, ms) {
    begin(SHAPES[size]);
    const saves = [];
    for (const until = performance.now() + ms; performance.now() < until; ) saves.push(save(step()));
    return { saves, backpressureMs: session.pending.backpressureMs };
  },

  /** `count` boundaries from the first save to the last file in place. */
  burst(size, count) {
    begin(SHAPES[size]);
    settle();
    const before = session.ledger.get('written');
    let captured = step();
    const start = performance.now();
    for (let i = 0; i < count; i++) {
      const { how } = save(captured);
      if (how !== 'queued') throw new Error(`a save of a burst ended as ${how}`);
      if (i + 1 < count) captured = again();
    }
    // The writer bumps `staged` behind each file.
    while (session.ledger.get('written') - before < count) Atomics.wait(pause, 0, 0, 1);
    const took = performance.now() - start;
    begin(SHAPES[size]);
    settle();
    return took;
  },

  settle() {
    settle();
    return { ledger: session.ledger.read(), held: session.pending.held };
  },

  fileBytes(size) {
    begin(SHAPES[size]);
    const captured = step();
    save(captured);
    settle();
    return session.pending.bytesWritten;
  },

  end() {
    begin(SHAPES['4 MB']);
    settle();
    clearThreadStreams();
    self.leave();
  },
};

parentPort.on('message', ({ operation, args }) => parentPort.postMessage(operations[operation](...args)));
