/**
 * Making room: least recently used first, children before parents, never what is pinned or in use, a bounded number of
 * files per save.
 *
 * Only leaves are ever removed, so protecting the tip of a chain protects the chain. Files of other formats that lie in the
 * block folders go before anything usable, but only when there is too much: being foreign is no reason to be deleted.
 */

import type { BlockRow } from '../shared/blocks/index-db.ts';
import { fileError } from '../shared/files.ts';
import type { BlockStore } from './block-store.ts';

export const FILES_PER_SAVE = 32;

export interface EvictionReport {
  readonly files: number;
  readonly bytes: number;
  /** Bytes that are still too many. */
  readonly excess: number;
}

function filesOf(row: BlockRow): number {
  return (row.kvBytes > 0 ? 1 : 0) + (row.stateBytes > 0 ? 1 : 0);
}

/** Removes at most `maxFiles` files until `bytes` more would fit. `isProtected` names tips that are in use. */
export function evict(store: BlockStore, bytes: number, isProtected: (hash: string) => boolean, maxFiles = FILES_PER_SAVE): EvictionReport {
  let files = 0;
  let freed = 0;
  const excess = () => store.space.excess(bytes);
  // Strangers that do not even carry a block's name are nobody's to delete.
  for (const file of store.foreign.filter((candidate) => candidate.path.endsWith('.safetensors'))) {
    if (excess() === 0 || files >= maxFiles) break;
    if (!store.removeForeign(file)) continue;
    files += 1;
    freed += file.bytes;
  }
  let progress = true;
  while (progress && excess() > 0 && files < maxFiles) {
    progress = false;
    const leaves = store.withIndex((index) => [...index.leastUsedLeaves(isProtected, maxFiles)]);
    for (const row of leaves) {
      if (excess() === 0 || files >= maxFiles) break;
      if (!store.removeBlock(row)) continue;
      store.withIndex((index) => index.rememberEvicted(row.hash));
      store.emit({ type: 'evicted', block: row.hash, bytes: row.kvBytes + row.stateBytes });
      files += filesOf(row);
      freed += row.kvBytes + row.stateBytes;
      progress = true;
    }
  }
  return { files, bytes: freed, excess: excess() };
}

/**
 * Room for a unit of `bytes`. When there is none although nothing more may be removed, throws ENOSPC: the unit fails, and
 * with it nothing that is in use. With the per-save bound reached, the unit is written all the same: the rest goes later.
 */
export function makeRoom(store: BlockStore, bytes: number, isProtected: (hash: string) => boolean): void {
  const report = evict(store, bytes, isProtected);
  if (report.excess > 0 && report.files < FILES_PER_SAVE)
    throw fileError(
      'ENOSPC',
      'reserve',
      store.paths.cacheDir,
      `${bytes} bytes do not fit into the cache limit of ${store.space.effectiveLimit()} bytes beside what is in use`,
    );
}

/** At start: the folder is brought under its limit before anything is served. The most recently used chain stays. */
export function enforceLimitAtStart(store: BlockStore): EvictionReport {
  const newest = store.withIndex((index) => index.newestTips());
  let report = evict(store, 0, (hash) => newest.has(hash));
  let { files, bytes } = report;
  while (report.excess > 0 && report.files > 0) {
    report = evict(store, 0, (hash) => newest.has(hash));
    files += report.files;
    bytes += report.bytes;
  }
  if (files > 0)
    store.emit({
      type: 'note',
      code: 'CACHE_FULL',
      message: `${files} files (${bytes} bytes) were removed at start: the cache limit is ${store.space.effectiveLimit()} bytes`,
      details: { files, bytes, excess: report.excess },
    });
  return { files, bytes, excess: report.excess };
}
