/**
 * A thread that uses a store: does one operation per message and answers with what came of it. It may block; the test's own
 * thread does not.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { Files } from '../../dist/shared/files.js';
import { requestKey } from '../../dist/shared/session/request-key.js';
import { attachSession } from '../../dist/shared/session/session.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import makeHooks from './gate.mjs';
import { block, fromLayers, toLayers } from './layers.mjs';

const { shared, memory, kind, name, gate } = workerData;
const self = new ThreadTable(shared.threads).enter(kind, name);
const files = new Files(gate === null ? {} : makeHooks({ gate }));
const session = attachSession(memory, self);
const store = new BoundarySnapshotStore(session, { files });

/** How each wait for `pendingCond` of this thread ended. */
const waits = [];
const { wait } = session.pendingCond;
session.pendingCond.wait = (...args) => {
  const ended = wait.apply(session.pendingCond, args);
  waits.push(ended);
  return ended;
};

const operations = {
  waits: () => waits,
  save: (id, count, layers, options) => store.save(id, count, toLayers(layers), options),
  load(id, count) {
    const result = store.load(id, count);
    return result.ok ? { ok: true, layers: fromLayers(result.layers) } : result;
  },
  has: (id, count) => store.has(id, count),
  take: (id, count, timeoutMs) => store.takeStagedFile(id, count, { timeoutMs }),
  cleanupRequest: (id) => store.cleanupRequest(id),
  cleanupAll: () => store.cleanupAll(),
  /** Looks at boundaries 1..last of a request until `stop` is set: one that was seen must not go away again. */
  watch(id, last, stop) {
    const key = requestKey(id);
    const seen = new Set();
    let gaps = 0;
    let looks = 0;
    while (Atomics.load(stop, 0) === 0) {
      for (let count = 1; count <= last; count++) {
        looks++;
        const known = session.underPending('watch', () => session.items.findVisible(key, count) >= 0) || store.has(id, count);
        if (known) seen.add(count);
        else if (seen.has(count)) gaps++;
      }
    }
    return { gaps, looks };
  },
  /** Many operations of one kind on random ids until `stop` is set or `rounds` are done; what they came to, counted. */
  hammer(kind, seed, rounds, ids, stop) {
    let state = seed >>> 0;
    const random = (below) => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    const pause = new Int32Array(new SharedArrayBuffer(4));
    const came = {};
    for (let round = 0; round < rounds && Atomics.load(stop, 0) === 0; round++) {
      const id = `r${random(ids)}`;
      const count = 1 + random(8);
      let outcome = '';
      if (kind === 'save') {
        const result = store.save(id, count, toLayers(block(count, 1 + random(9000))));
        outcome = result.ok ? result.how : result.reason;
      } else if (kind === 'load') {
        const result = store.load(id, count);
        outcome = result.ok ? (fromLayers(result.layers)[0].elements[0].bytes.every((byte) => byte === count) ? 'right' : 'WRONG') : result.reason;
      } else if (kind === 'take') {
        const result = store.takeStagedFile(id, count, { timeoutMs: random(3) });
        outcome = result.ok ? 'taken' : result.reason;
      } else if (kind === 'cleanupAll') {
        outcome = store.cleanupAll().complete ? 'complete' : 'left to the writer';
        Atomics.wait(pause, 0, 0, 50);
      } else {
        outcome = store.cleanupRequest(id).complete ? 'complete' : 'left to the writer';
        Atomics.wait(pause, 0, 0, random(3));
      }
      came[outcome] = (came[outcome] ?? 0) + 1;
    }
    return came;
  },
  /** Takes a lock and keeps it: for tests of what others do then. */
  holdLock(lock) {
    return session.locks[lock].acquire(1000, 'test');
  },
  releaseLock(lock) {
    session.locks[lock].release();
  },
};

parentPort.on('message', ({ id, operation, args }) => {
  try {
    parentPort.postMessage({ id, value: operations[operation](...args) });
  } catch (error) {
    parentPort.postMessage({ id, error: { message: error.message, code: error.code } });
  }
});
parentPort.postMessage({ id: 0, value: 'ready' });
