/** Entry of the engine Worker: makes the core and exposes it to main through Comlink. */
import { parentPort, workerData } from 'node:worker_threads';
import * as Comlink from 'comlink';
import nodeEndpoint from 'comlink/dist/esm/node-adapter.mjs';
import type { EngineApi, EngineInit, Reply } from '../shared/engine-protocol.ts';
import { errorToWire } from '../shared/errors.ts';
import { loadNativeCore } from '../shared/native-core.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import { EngineCore } from './engine-core.ts';

const init = workerData as EngineInit;
loadNativeCore()?.setThreadName('tidemark-engine');
const self = new ThreadTable(init.shared.threads).enter('engine', 'engine');
const core = new EngineCore(init, self);

/** Errors lose their class on the way to main, so every answer is a record. */
async function reply<T>(work: () => T): Promise<Reply<T>> {
  try {
    return { ok: true, value: work() };
  } catch (error) {
    return { ok: false, error: errorToWire(error) };
  }
}

const api: EngineApi = {
  load: () => reply(() => core.load()),
  submit: (request) => reply(() => core.submit(request)),
  countTokens: (input) => reply(() => core.countTokens(input)),
  renewStore: (init) =>
    reply(() => {
      core.renewStore(init);
      return null;
    }),
  shutdown: () =>
    reply(() => {
      try {
        core.shutdown();
        return null;
      } finally {
        self.leave();
        // The reply is posted before the port closes; with no port left the thread ends by itself.
        setImmediate(() => parentPort?.close());
      }
    }),
};

Comlink.expose(api, nodeEndpoint(parentPort));
