/**
 * Threads of buffer-lock.test.ts: an engine with MLX that clears, and a reader or a store job double beside it.
 * `words`: 0 who is inside (0 nobody), 1 violations, 2 stop, 3 slices copied, 4 the stream is done, 5 the job gives up,
 * 6 how often the engine had the lock, 7 the engine is about to want it.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { bufferAccessLock } from '../../dist/shared/process-shared.js';
import { PRIORITY } from '../../dist/shared/sync/lock-word.js';
import { now, ThreadTable } from '../../dist/sync.js';

const { shared, scenario, name, kind, words, args } = workerData;
const INSIDE = 0;
const VIOLATIONS = 1;
const STOP = 2;
const SLICES = 3;
const STREAM_DONE = 4;
const GIVE_UP = 5;
const HAD = 6;
const WANTED = 7;
const me = new ThreadTable(shared.threads).enter(kind, name);
const lock = bufferAccessLock(shared, me);

const enter = () => {
  if (Atomics.compareExchange(words, INSIDE, 0, me.token) !== 0) Atomics.add(words, VIOLATIONS, 1);
};
const leave = () => Atomics.store(words, INSIDE, 0);
/** For broken builds only. */
const LIMIT_MS = Math.min(15_000, Number(process.env.TIDEMARK_PATIENCE_MS ?? 15_000));
const until = (word, what, ms = LIMIT_MS) => {
  const end = now() + ms;
  while (Atomics.load(words, word) === 0) {
    if (now() > end) throw new Error(`${name} waited ${ms} ms for ${what}`);
    Atomics.wait(words, word, 0, 20);
  }
};
const set = (word, value = 1) => {
  Atomics.store(words, word, value);
  Atomics.notify(words, word);
};
/** The real lock with a patience that no test reaches. */
const patient = { acquire: (_, site) => lock.acquire(15_000, site), release: () => lock.release() };

async function engine() {
  const mx = await import('../../dist/engine-thread/mlx/ops.js');
  const native = (await import('../../dist/engine-thread/mlx/binding.js')).mlx();
  const { clearCache } = native;
  native.clearCache = () => {
    enter();
    clearCache();
    leave();
  };
  const sync = await import('../../dist/engine-thread/mlx/metal-sync.js');
  mx.setBlasThreads(1);
  const stream = mx.openEngineStream('cpu');
  return { mx, sync, stream };
}

const figures = (sync) => {
  const { done, skipped } = sync.clearCounts();
  return { done, skipped };
};

const SLICE = 8 * 1024 * 1024;

const scenarios = {
  /** The engine: clears, with something to clear in between. */
  async clears() {
    const { mx, sync, stream } = await engine();
    for (let round = 0; round < args.rounds; round++) {
      if (round % 100 === 0) mx.scope(() => mx.evaluate([mx.full([4096], round, 'float32', stream)]));
      if (!sync.syncAndClearCache(stream, patient)) throw new Error('the lock was not had');
    }
    set(STOP);
    return figures(sync);
  },
  /** Reads bytes out of an MLX buffer on another thread, under the lock, taken twice over. */
  async reads() {
    const { mx, stream } = await engine();
    const wanted = Float32Array.from({ length: 4096 }, (_, i) => i);
    const t = mx.fromBytes(new Uint8Array(wanted.buffer), [4096], 'float32');
    const target = new Uint8Array(wanted.byteLength);
    let rounds = 0;
    let wrong = 0;
    while (Atomics.load(words, STOP) === 0) {
      lock.acquire(15_000, 'read');
      lock.acquire(0, 'read again');
      enter();
      mx.readBytes(t, 0, target);
      leave();
      lock.release();
      lock.release();
      if (Buffer.compare(target, new Uint8Array(wanted.buffer)) !== 0) wrong++;
      rounds++;
      // A store job does other things between two copies.
      Atomics.wait(words, STOP, 0, 0.05);
    }
    mx.release(t);
    mx.synchronize(stream);
    return { rounds, wrong };
  },
  /** A copy of `slices` x 8 MiB, the lock taken for each slice: how often another slice came before the one who waited. */
  copies() {
    const source = new Uint8Array(new SharedArrayBuffer(SLICE)).fill(1);
    const target = new Uint8Array(new SharedArrayBuffer(SLICE));
    let passedOver = 0;
    lock.acquire(15_000, 'slice');
    for (let i = 0; i < args.slices && passedOver === 0; i++) {
      target.set(source);
      Atomics.add(words, SLICES, 1);
      const end = now() + LIMIT_MS / 4;
      while (Atomics.load(lock.words, lock.at + PRIORITY) === 0 && now() < end) Atomics.wait(words, STOP, 0, 1);
      const had = Atomics.load(words, HAD);
      lock.release();
      lock.acquire(15_000, 'slice');
      if (Atomics.load(words, HAD) === had) passedOver++;
    }
    set(STOP);
    lock.release();
    return passedOver;
  },
  /** The same copy with the lock held over all of it. */
  wholeCopy() {
    const source = new Uint8Array(new SharedArrayBuffer(SLICE)).fill(1);
    const target = new Uint8Array(new SharedArrayBuffer(SLICE));
    lock.acquire(15_000, 'whole copy');
    for (let i = 0; i < args.slices; i++) {
      target.set(source);
      set(SLICES, i + 1);
      if (i === 0) until(WANTED, 'the other');
    }
    const had = Atomics.load(words, HAD);
    lock.release();
    return had;
  },
  /** Wants the lock again and again while a copy runs; how many slices were copied when it had it first. */
  wants() {
    until(SLICES, 'the first slice');
    set(WANTED);
    let first = 0;
    do {
      if (!lock.acquire(15_000, 'syncAndClearCache')) throw new Error('the lock was not had');
      first ||= Atomics.load(words, SLICES);
      Atomics.add(words, HAD, 1);
      lock.release();
    } while (args.again && Atomics.load(words, STOP) === 0);
    return first;
  },
  /** The engine: its stream is done only when this thread has come past its clear. */
  async stuckStream() {
    const { mx, sync, stream } = await engine();
    mx.scope(() => mx.evaluate([mx.full([64], 1, 'float32', stream)]));
    parentPort.postMessage('ready');
    until(STOP, 'the go');
    const cleared = sync.syncAndClearCache(stream, args.patient ? patient : lock);
    set(STREAM_DONE);
    return { cleared, ...figures(sync) };
  },
  /** A store job. Naive: it waits for the engine's stream under the lock. Ours: the engine has waited before it handed over. */
  job() {
    const wait = () => {
      me.activity('stream', 'stream of the engine', 2_000, args.engineSlot);
      const end = now() + LIMIT_MS;
      while (Atomics.load(words, STREAM_DONE) === 0 && Atomics.load(words, GIVE_UP) === 0 && now() < end) Atomics.wait(words, STREAM_DONE, 0, 5);
      me.idle();
      return { streamDone: Atomics.load(words, STREAM_DONE) === 1, gaveUp: Atomics.load(words, GIVE_UP) === 1 };
    };
    if (args.order === 'naive') {
      lock.acquire(15_000, 'store job');
      parentPort.postMessage('holds');
      const came = wait();
      lock.release();
      return came;
    } else {
      for (let i = 0; i < 3; i++) {
        lock.acquire(2_000, 'lease slice');
        lock.release();
        if (i === 0) parentPort.postMessage('holds');
      }
      return wait();
    }
  },
};

const result = await scenarios[scenario]();
me.leave();
parentPort.postMessage({ result });
