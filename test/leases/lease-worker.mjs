/**
 * Threads of the lease tests. `workerData`: { shared, words, arena, scenario, args }. `words`: 0 the lease, 1 the round whose lease it is,
 * 2 the round that is copied, 3 stop. A scenario posts strings on its way and { result } at its end.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { mlx } from '../../dist/engine-thread/mlx/binding.js';
import { bufferAccessLock } from '../../dist/shared/process-shared.js';
import { ThreadTable } from '../../dist/sync.js';

const { shared, words, arena: memory, scenario, kind, args } = workerData;
const me = new ThreadTable(shared.threads).enter(kind, scenario);
const lock = bufferAccessLock(shared, me);
const native = mlx();
const arena = new Uint8Array(memory);
const LEASE = 0;
const GIVEN = 1;
const COPIED = 2;
const STOP = 3;
/** For broken builds only. */
const LIMIT_MS = 20_000;

const set = (word, value) => {
  Atomics.store(words, word, value);
  Atomics.notify(words, word);
};
const waitFor = (word, value) => {
  const end = performance.now() + LIMIT_MS;
  for (let now = Atomics.load(words, word); now !== value; now = Atomics.load(words, word)) {
    if (performance.now() > end) throw new Error(`${scenario} waited ${LIMIT_MS} ms for word ${word} to be ${value}`);
    Atomics.wait(words, word, now, 50);
  }
};
const codeOf = (fn) => {
  try {
    return fn();
  } catch (error) {
    return error.code;
  }
};

async function engine() {
  const mx = await import('../../dist/engine-thread/mlx/ops.js');
  const sync = await import('../../dist/engine-thread/mlx/metal-sync.js');
  mx.setBlasThreads(1);
  return { mx, sync, stream: mx.openEngineStream('cpu') };
}

/** All of some tensors, one after the other in the arena. */
function lease(mx, tensors) {
  let at = 0;
  const pieces = tensors.flatMap((t) => {
    const size = mx.nbytes(t);
    at += size;
    return [t, 0, size, at - size];
  });
  return native.leaseOpen(new Uint8Array(Float64Array.from(pieces).buffer), arena);
}

const slice = (id, most) => {
  if (!lock.acquire(LIMIT_MS, 'lease slice')) throw new Error('the lock was not had');
  try {
    return native.leaseCopy(id, arena, most);
  } finally {
    lock.release();
  }
};

const scenarios = {
  /** Gives one lease after the other, and does to the arrays and the allocator whatever an engine does meanwhile. */
  async gives() {
    const { mx, sync, stream } = await engine();
    const { elements, rounds } = args;
    const clear = { acquire: (_, site) => lock.acquire(LIMIT_MS, site), release: () => lock.release() };
    for (let round = 1; round <= rounds; round++) {
      mx.scope(() => {
        const state = [mx.full([elements], round, 'float32', stream), mx.full([elements], -round, 'float32', stream)];
        mx.evaluate(state);
        set(LEASE, lease(mx, state));
        set(GIVEN, round);
        // The next states: in the buffers of the former ones, if these were free to be used.
        for (const t of state) mx.evaluate([mx.mul(t, 0.5, stream)]);
      });
      if (round % 2 === 0) sync.syncAndClearCache(stream, clear);
      mx.scope(() => mx.evaluate([mx.full([elements], 0.25, 'float32', stream), mx.full([elements], 0.75, 'float32', stream)]));
      if (round % 3 === 0) sync.syncAndClearCache(stream, clear);
      waitFor(COPIED, round);
      native.leaseDrop(Atomics.load(words, LEASE));
    }
    return { clears: sync.clearCounts().done, skipped: sync.clearCounts().skipped, leases: native.leaseCount() };
  },
  /** Copies each lease in slices, and looks at every byte. */
  copies() {
    const { elements, rounds, sliceBytes } = args;
    const floats = new Float32Array(memory, 0, 2 * elements);
    let wrong = 0;
    for (let round = 1; round <= rounds; round++) {
      waitFor(GIVEN, round);
      arena.fill(0, 0, floats.byteLength);
      const id = Atomics.load(words, LEASE);
      while (slice(id, sliceBytes) > 0);
      if (!floats.every((value, i) => value === (i < elements ? round : -round))) wrong++;
      set(COPIED, round);
    }
    return { rounds, wrong };
  },
  /** Gives one lease, and stays. */
  async stays() {
    const { mx, stream } = await engine();
    const { elements } = args;
    set(
      LEASE,
      mx.scope(() => {
        const t = mx.arange(0, elements, 1, 'float32', stream);
        mx.evaluate([t]);
        return lease(mx, [t]);
      }),
    );
    parentPort.postMessage('given');
    waitFor(STOP, 1);
    // What the dead reader has left is the engine's to drop.
    const before = native.leaseCount();
    native.leaseDrop(Atomics.load(words, LEASE));
    return { before, after: native.leaseCount() };
  },
  /** Copies a part of it, and then sits there. */
  halfway() {
    const left = slice(Atomics.load(words, LEASE), args.bytes);
    if (args.holding) lock.acquire(LIMIT_MS, 'lease slice');
    parentPort.postMessage('halfway');
    waitFor(STOP, 1);
    return left;
  },
  /** Copies what is left. */
  finishes() {
    const outcome = codeOf(() => {
      while (slice(Atomics.load(words, LEASE), 1 << 20) > 0);
      return 'whole';
    });
    const floats = new Float32Array(memory, 0, args.elements);
    return { outcome, right: floats.every((value, i) => value === i), leases: native.leaseCount() };
  },
};

const result = await scenarios[scenario]();
me.leave();
parentPort.postMessage({ result });
