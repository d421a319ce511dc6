/**
 * What `cache gc` would do: the same steps on an index in memory, with nothing removed on disk.
 */
import { existsSync } from 'node:fs';
import { readImageHeader } from '../shared/blocks/block-file.ts';
import { IndexDb } from '../shared/blocks/index-db.ts';
import { BlockPaths } from '../shared/blocks/paths.ts';
import { Files } from '../shared/files.ts';
import { reconcile } from '../store-worker/rebuild.ts';
import { freeBytesOf } from '../store-worker/space.ts';
import { walkCache as walkBlocks } from '../store-worker/walk.ts';
import type { GcReport } from './cache-gc.ts';
import { walkCache } from './cache-walk.ts';

export function planGc(dir: string, limit: number): GcReport {
  const paths = new BlockPaths(dir);
  const files = new Files();
  const index = new IndexDb(null);
  const notes: string[] = [];
  try {
    copyIndex(paths.index, index, notes);
    let bytesBefore = 0;
    let bytes = 0;
    let removed = 0;
    for (const file of walkCache(dir)) {
      bytesBefore += file.diskBytes;
      const damaged = file.blockHash !== null && isDamaged(files, file.path);
      if (file.kind === 'staging' || file.kind === 'temporary' || damaged) removed++;
      else bytes += file.diskBytes;
    }
    // Fills in what the index lacks and drops what is gone; in read-only mode it touches no file.
    const { foreign } = reconcile(index, walkBlocks(paths), files, paths, true);
    const effective = Math.min(limit, Math.floor((bytesBefore + freeBytesOf(dir)) * 0.99));
    for (const file of foreign) {
      if (bytes <= effective) break;
      if (!file.path.endsWith('.safetensors') || isDamaged(files, file.path)) continue;
      bytes -= file.bytes;
      removed++;
    }
    let blocks = 0;
    while (bytes > effective) {
      const [leaf] = index.leastUsedLeaves(() => false, 1);
      if (leaf === undefined) break;
      index.remove(leaf.hash);
      bytes -= leaf.kvBytes + leaf.stateBytes;
      removed += (leaf.kvBytes > 0 ? 1 : 0) + (leaf.stateBytes > 0 ? 1 : 0);
      blocks++;
    }
    return { bytesBefore, bytesAfter: bytes, files: removed, blocks, notes };
  } finally {
    index.close();
  }
}

/** Recency is only in the index; without a readable one, older files count as less recently used. */
function copyIndex(path: string, into: IndexDb, notes: string[]): void {
  if (!existsSync(path)) return;
  try {
    const from = new IndexDb(path, { readOnly: true });
    try {
      into.transaction(() => {
        for (const row of from.all()) {
          into.put(row);
          if (row.pinned === 1) into.pin(row.hash, true);
        }
      });
    } finally {
      from.close();
    }
  } catch (error) {
    notes.push(`the index cannot be read (${(error as Error).message}); the order of removal is by the age of the files`);
  }
}

/** A header that no reader of any version accepts: such a file goes when the folder is opened for writing. */
function isDamaged(files: Files, path: string): boolean {
  const image = readImageHeader(files, path);
  return !image.ok && image.reason !== 'version' && image.reason !== 'io' && image.reason !== 'gap';
}
