/**
 * A stand-in for the engine thread: one stream, caches, and the engine's own recorder over a real session. Each round
 * appends a block and then times one thing: the capture of the boundary, a plain copy of the same bytes, or that copy again.
 *
 * workerData: { shared, store: EngineStoreInit, name, rounds, warmUp }. Posts { samples, bytes, ledger }.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { EngineStoreClient } from '../../dist/engine-thread/engine-store-client.js';
import { setBlasThreads } from '../../dist/engine-thread/mlx/memory.js';
import { clearThreadStreams } from '../../dist/engine-thread/mlx/metal-sync.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { tensorReader } from '../../dist/engine-thread/mlx/read-many.js';
import { openEngineStream } from '../../dist/engine-thread/mlx/streams.js';
import { attachSession } from '../../dist/shared/session/index.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { seededTokens } from './ratio.mjs';
import { BLOCK, openCase } from './stall-cases.mjs';

/** Blocks of one sequence; then a new one begins, so that caches stay small. */
const SEQUENCE_BLOCKS = 8;

/** 'again' is a plain copy as well: their ratio shows what the method scatters. */
const TURNS = ['plain', 'capture', 'again'];

const { shared, store, name, rounds, warmUp } = workerData;
const self = new ThreadTable(shared.threads).enter('engine', 'engine');
const stream = openEngineStream('cpu');
setBlasThreads(1);
const { model, makeCaches, step } = openCase(name, stream);
const client = new EngineStoreClient(store, self, model, [], {
  warn: fail,
  degraded: (_code, message) => fail(message),
});
const session = attachSession(store.memory, self);
const pause = new Int32Array(new SharedArrayBuffer(4));

function fail(message) {
  throw new Error(message);
}

let requestNo = 0;
let caches = [];
let recorder = null;
let tokens = [];
let room = null;

function nextSequence() {
  recorder?.close();
  for (const cache of caches) cache.release();
  requestNo++;
  caches = makeCaches();
  tokens = seededTokens(SEQUENCE_BLOCKS * BLOCK, requestNo);
  recorder = client.recorder({ requestNo, requestId: `stall-${requestNo}`, persist: 'boundary' });
}

/** The companion of a pass, and how long it worked beside it. */
function timed(companion) {
  const timer = { ms: 0, built: () => clocked(() => companion.built()), running: () => clocked(() => companion.running()) };
  const clocked = (work) => {
    const begin = performance.now();
    const result = work();
    timer.ms += performance.now() - begin;
    return result;
  };
  return timer;
}

/** The places in the caches' own memory of all that a boundary stores, for one plain copy of them: tensor, from, size, to. */
function piecesOf(end) {
  const pieces = [];
  let to = 0;
  const piece = (t, from, size) => {
    pieces.push(t, from, size, to);
    to += size;
  };
  for (const cache of caches) {
    for (const t of cache.tensors()) {
      if (!cache.sliceable) {
        piece(t, 0, mx.nbytes(t));
        continue;
      }
      const [, heads, capacity] = mx.shapeOf(t);
      const rowBytes = mx.nbytes(t) / heads / capacity;
      for (let head = 0; head < heads; head++) piece(t, (head * capacity + end - BLOCK) * rowBytes, BLOCK * rowBytes);
    }
  }
  bytes = to;
  return Float64Array.from(pieces);
}

function plainCopy(pieces) {
  const begin = performance.now();
  tensorReader.readMany(pieces, room);
  return performance.now() - begin;
}

function capture(end) {
  const begin = performance.now();
  recorder.capture(caches, tokens, end, true);
  const took = performance.now() - begin;
  // The next pass waits until all is stored, so the bell that would be rung beside it is rung here.
  client.endOfRound(false);
  settle();
  return took;
}

/** Writer and store worker keep up: the next boundary finds them idle, as it does after a step's computation. */
function settle() {
  const until = performance.now() + 60_000;
  while (session.itemsInFlight > 0) {
    if (performance.now() > until) throw new Error('writer and store worker did not keep up within 60 s');
    Atomics.wait(pause, 0, 0, 2);
  }
}

const samples = { plain: [], capture: [], again: [], beside: [] };
let bytes = 0;
for (let round = -warmUp; round < rounds; round++) {
  const block = (round + warmUp) % SEQUENCE_BLOCKS;
  if (block === 0) nextSequence();
  const end = (block + 1) * BLOCK;
  const timer = timed(recorder.announce(caches, tokens, end));
  step(caches, tokens.slice(end - BLOCK, end), timer);
  const pieces = piecesOf(end);
  room ??= new Uint8Array(new SharedArrayBuffer(bytes));
  // Only what comes right behind the pass is timed: what comes later finds the bytes in this core's cache.
  const turn = TURNS[(round + warmUp) % TURNS.length];
  const took = turn === 'capture' ? capture(end) : plainCopy(pieces);
  if (turn !== 'capture') capture(end);
  if (round < 0) continue;
  samples[turn].push(took);
  samples.beside.push(timer.ms);
}
recorder.close();
for (const cache of caches) cache.release();
const ledger = session.ledger.read();
client.close();
clearThreadStreams();
self.leave();
parentPort.postMessage({ samples, bytes, ledger });
