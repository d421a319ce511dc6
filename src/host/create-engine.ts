/** `createEngine`: checks, then starts the store (when there is a cache) and the engine thread, then loads the model. */
import { statSync } from 'node:fs';
import { isMainThread, MessageChannel } from 'node:worker_threads';
import { mlx } from '../engine-thread/mlx/binding.ts';
import { EngineCounters } from '../shared/engine-counters.ts';
import { TidemarkError } from '../shared/errors.ts';
import { RequestTable } from '../shared/request-table.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import type { Engine, EngineOptions } from './api.ts';
import { diagnoseProcess } from './diagnosis.ts';
import { EngineHost } from './engine.ts';
import { EngineLink } from './engine-link.ts';
import { EngineStore } from './engine-store.ts';
import { processRegistry } from './process-registry.ts';
import { installSignalDump, resolveSignalDump } from './signal-dump.ts';
import { resolveEngineOptions } from './validate.ts';

/**
 * Creates an engine: loads `options.model` on a thread of its own and opens the cache folder.
 *
 * Rejects with NOT_MAIN_THREAD, PLATFORM_UNSUPPORTED, MLX_UNAVAILABLE, INVALID_ARGUMENT or one of the MODEL_… codes.
 * A cache folder that can't be used is no error: the engine works without it and says so once (`degraded`).
 */
export async function createEngine(options: EngineOptions): Promise<Engine> {
  if (!isMainThread) {
    throw new TidemarkError('NOT_MAIN_THREAD', 'createEngine was called in a Worker. Call it on the main thread; the engine makes its own threads.');
  }
  const resolved = resolveEngineOptions(options);
  const signalDump = resolveSignalDump(options.diagnoseOnSignal);
  assertModelFolder(options.model);
  // Loaded, but idle, on main too: the code then stays mapped when the engine thread ends. MLX itself is not touched here.
  mlx();

  const registry = processRegistry();
  const store = resolved.cache === null ? null : await EngineStore.open(registry, resolved.cache, resolved.engine);
  // From here on something can be stuck, loading included.
  const removeSignalDump = signalDump === null ? null : installSignalDump(signalDump, () => diagnoseProcess(registry).text);
  const { port1: delivery, port2: engineEnd } = new MessageChannel();
  const requests = RequestTable.create(resolved.maxQueue);
  const counters = EngineCounters.create();
  const host = new EngineHost({
    options: resolved.engine,
    maxQueue: resolved.maxQueue,
    requests,
    counters,
    store,
    diagnose: () => diagnoseProcess(registry),
    heartbeats: () => heartbeats(new ThreadTable(registry.shared.threads)),
    stuck: registry.stuck,
    whenClosed: () => removeSignalDump?.(),
  });
  const link = new EngineLink(
    { shared: registry.shared, options: resolved.engine, requests, counters, delivery: engineEnd, store: store?.engineInit() ?? null },
    delivery,
    host.receive,
    host.died,
  );
  try {
    await host.start(link, (message) => options.onProgress?.(message.progress));
  } catch (error) {
    removeSignalDump?.();
    await link.end(1_000);
    await store?.close(1_000);
    throw error;
  }
  // After the caller's continuation, so that its listeners are there.
  setImmediate(() => {
    host.announce();
    const fences = process.env.MLX_METAL_FAST_SYNCH ?? '';
    if (fences !== '' && fences !== '0') host.emit('warning', { code: 'MLX_METAL_FAST_SYNCH', message: FAST_FENCES });
  });
  return host;
}

const FAST_FENCES =
  'MLX_METAL_FAST_SYNCH is set: fast fences of MLX can wait for ever when work crosses streams. Unset it. Work of this engine never crosses streams; that of other code in the process may.';

function assertModelFolder(path: string): void {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found?.isDirectory()) return;
  throw new TidemarkError(
    'MODEL_NOT_FOUND',
    found === undefined
      ? `There is no folder '${path}'. Give the path of an MLX model folder (config.json, *.safetensors, tokenizer.json).`
      : `'${path}' is a file. Give the path of the model's folder (config.json, *.safetensors, tokenizer.json).`,
    { details: { path } },
  );
}

function heartbeats(threads: ThreadTable): Record<string, number> {
  return Object.fromEntries(threads.list().map((thread) => [thread.name, thread.heartbeatAgeMs]));
}
