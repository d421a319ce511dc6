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
import { fromLayers, toLayers } from './layers.mjs';

const { shared, memory, kind, name, gate } = workerData;
const self = new ThreadTable(shared.threads).enter(kind, name);
const files = new Files(gate === null ? {} : makeHooks({ gate }));
const session = attachSession(memory, self);
const store = new BoundarySnapshotStore(session, { files });

const operations = {
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
