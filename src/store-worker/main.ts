/**
 * Entry of the store worker: the one long-lived task of the keeper's Piscina pool, one per cache folder.
 *
 * Opens the block store (temporary files of a crash go, index and disk are brought together, the size limit is enforced),
 * then serves sessions until it is told to stop. Whatever is wrong with the folder is an event, never an error of the task.
 */
import { leaseAccess } from '../engine-thread/mlx/lease-access.ts';
import { type FileHooks, type FileOperation, Files } from '../shared/files.ts';
import { HubControl } from '../shared/loop-control.ts';
import { Mailbox } from '../shared/mailbox.ts';
import { loadNativeCore } from '../shared/native-core.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import type { LoopMessage, LoopPost, StoreWorkerInit } from '../shared/worker-init.ts';
import { BlockStore, type BlockStoreOptions } from './block-store.ts';
import { DrainLoop } from './drain-loop.ts';
import { enforceLimitAtStart } from './eviction.ts';
import { markCacheFolder } from './folder-marks.ts';
import type { BackOff } from './persistence.ts';

/** What tests add: a module whose default export makes `FileHooks` from `data`, and shorter times. */
export interface StoreWorkerTestInit {
  readonly faults?: { readonly module: string; readonly data: unknown };
  readonly backOff?: BackOff;
  readonly probeTtlMs?: number;
}

/** Slow operations are announced before they begin, so that `diagnose()` can name the path a thread is stuck on. */
const ANNOUNCED: readonly FileOperation[] = ['open', 'create', 'pwrite', 'pread', 'fsync', 'syncFolder', 'rename', 'unlink'];

export default async function run(init: StoreWorkerInit & StoreWorkerTestInit): Promise<void> {
  const control = new HubControl(init.hub).store;
  const core = loadNativeCore();
  core?.setThreadName('tm-store');
  const self = new ThreadTable(init.shared.threads).enter('store-worker', 'store-worker');
  const post = (event: LoopPost) => init.events.postMessage(event);
  const faults = await faultHooks(init);
  const files = new Files({
    before(operation, path) {
      if (ANNOUNCED.includes(operation)) self.activity('file', `${operation} ${path}`);
      return faults.before?.(operation, path);
    },
    after: (operation, path) => faults.after?.(operation, path),
  });
  control.setState('running');
  post({ type: 'started', slot: self.slot, token: self.token });
  try {
    const openStore = (emit: BlockStoreOptions['emit']) => {
      self.activity('file', init.cacheDir, 60_000);
      const { cacheDir, mode, maxBytes } = init;
      // Before the store counts what lies in the folder.
      const unmarked = mode === 'writer' ? markCacheFolder(files, cacheDir, process.platform, core) : null;
      if (unmarked !== null) emit({ type: 'note', code: 'CACHE_IO', message: unmarked, details: { path: cacheDir } });
      const store = new BlockStore({ files, cacheDir, mode, maxBytes, emit, ...(init.probeTtlMs === undefined ? {} : { probeTtlMs: init.probeTtlMs }) });
      if (mode === 'writer') limitAtStart(store, emit);
      return store;
    };
    new DrainLoop({
      control,
      mailbox: new Mailbox<LoopMessage>(init.mailbox),
      self,
      leases: leaseAccess(init.shared, self),
      post,
      openStore,
      ...(init.backOff === undefined ? {} : { backOff: init.backOff }),
    }).run();
  } finally {
    self.leave();
    control.setState('returned');
    init.events.close();
    init.mailbox.close();
  }
}

function limitAtStart(store: BlockStore, emit: BlockStoreOptions['emit']): void {
  try {
    enforceLimitAtStart(store);
  } catch (error) {
    // On a full disk SQLite may not even be able to forget. The next unit tries again.
    emit({ type: 'note', code: 'CACHE_IO', message: `the size limit could not be enforced at start: ${String(error)}`, details: {} });
  }
}

async function faultHooks(init: StoreWorkerTestInit): Promise<FileHooks> {
  if (init.faults === undefined) return {};
  const made = (await import(init.faults.module)) as { default: (data: unknown) => FileHooks };
  return made.default(init.faults.data);
}
