/**
 * What exists once per process, however many engines and copies of this package there are: the shared memory of all threads,
 * the main thread's own entry, and one store hub for each cache folder. It hangs on `globalThis`, so that two copies of the
 * package share the lock that keeps MLX buffers from being cleared under a reader.
 */
import { isMainThread } from 'node:worker_threads';
import { TidemarkError } from '../shared/errors.ts';
import type { ProcessShared } from '../shared/process-shared.ts';
import { createProcessShared } from '../shared/process-shared.ts';
import type { ThreadHandle } from '../shared/sync/thread-table.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import { watchProcessEnd } from './process-end.ts';
import type { StoreHub } from './store-hub.ts';

const KEY = Symbol.for('tidemark.process');
/** Of the memory layouts and of this record. Copies of the package with another number cannot share a process. */
const VERSION = 1;

export interface HubEntry {
  readonly hub: Promise<StoreHub>;
  references: number;
}

export interface ProcessRegistry {
  readonly version: number;
  readonly shared: ProcessShared;
  readonly threads: ThreadTable;
  /** The main thread's entry. */
  readonly self: ThreadHandle;
  /** By real path of the cache folder. */
  readonly hubs: Map<string, HubEntry>;
  /** Hubs that are running, for the end of the process. */
  readonly running: Set<StoreHub>;
  /** Names of threads that could not be ended because they sit in native code. Node would wait for them for ever. */
  readonly stuck: Set<string>;
}

/** The registry of this process, made at the first call. Main thread only. */
export function processRegistry(): ProcessRegistry {
  if (!isMainThread) throw new TidemarkError('NOT_MAIN_THREAD', 'Engines and stores are made on the main thread; they make their own threads.');
  const holder = globalThis as { [KEY]?: ProcessRegistry };
  const found = holder[KEY];
  if (found !== undefined) {
    if (found.version !== VERSION) {
      throw new TidemarkError(
        'VERSION_CONFLICT',
        'Two versions of tidemark that cannot share a process are loaded. Install one version (npm ls tidemark shows who asks for which).',
        {
          details: { loaded: found.version, wanted: VERSION },
        },
      );
    }
    return found;
  }
  const shared = createProcessShared();
  const threads = new ThreadTable(shared.threads);
  const registry: ProcessRegistry = {
    version: VERSION,
    shared,
    threads,
    self: threads.enter('main', 'main'),
    hubs: new Map(),
    running: new Set(),
    stuck: new Set(),
  };
  Object.defineProperty(holder, KEY, { value: registry });
  watchProcessEnd(registry);
  return registry;
}
