/**
 * What really lies under a cache folder, by walking it: the ledger's starting point and what the index is checked against.
 *
 * Sizes are physical (allocated blocks), of every file, whoever made it. Links are counted as themselves and not followed.
 * A file that vanishes during the walk (staging of a living session) is left out; an unreadable folder counts as empty and
 * is named in `unreadable`.
 */
import { type Dirent, lstatSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { type BlockPaths, isFanOutName, isTemporaryName, parseBlockName } from '../shared/blocks/paths.ts';
import { errnoOf } from '../shared/files.ts';
import type { BlockPart } from '../shared/layer-state.ts';

export interface FoundFile {
  readonly path: string;
  /** Allocated bytes. */
  readonly bytes: number;
  readonly mtimeMs: number;
}

export interface FoundBlock extends FoundFile {
  readonly blockHash: string;
  readonly part: BlockPart;
}

export interface Walk {
  readonly blocks: FoundBlock[];
  /** Temporary files in block folders: left by a crash, since only one process writes. */
  readonly temporaries: FoundFile[];
  /** Other files in block folders. */
  readonly strangers: FoundFile[];
  /** Bytes of everything outside the block folders: index, staging, lock, whatever else. */
  readonly otherBytes: number;
  readonly unreadable: { path: string; errno: string }[];
}

/** Allocated bytes of one file; null when it is gone. */
export function physicalSize(path: string): FoundFile | null {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  // Not every file system reports allocated blocks; there the length is the best there is.
  return stat === undefined ? null : { path, bytes: Math.max(stat.blocks * 512, stat.blocks === 0 ? stat.size : 0), mtimeMs: stat.mtimeMs };
}

function entriesOf(path: string, unreadable: Walk['unreadable']): Dirent[] {
  try {
    return readdirSync(path, { withFileTypes: true });
  } catch (error) {
    const errno = errnoOf(error);
    if (errno !== 'ENOENT') unreadable.push({ path, errno });
    return [];
  }
}

function bytesUnder(path: string, unreadable: Walk['unreadable'], skip: string | null = null): number {
  let bytes = 0;
  for (const entry of entriesOf(path, unreadable)) {
    const child = join(path, entry.name);
    if (child === skip) continue;
    if (entry.isDirectory()) bytes += bytesUnder(child, unreadable);
    else bytes += physicalSize(child)?.bytes ?? 0;
  }
  return bytes;
}

/** Bytes under the cache folder without its block folders; cheap enough to ask again every half minute. */
export function otherBytes(paths: BlockPaths): number {
  return bytesUnder(paths.cacheDir, [], paths.blocks);
}

/** Files of one fan-out folder, sorted into the three kinds. */
export function walkFanOut(folder: string, into: Pick<Walk, 'blocks' | 'temporaries' | 'strangers' | 'unreadable'>): void {
  for (const entry of entriesOf(folder, into.unreadable)) {
    const path = join(folder, entry.name);
    const file = physicalSize(path);
    if (file === null) continue;
    const name = entry.isFile() ? parseBlockName(entry.name) : null;
    if (name !== null && folder.endsWith(name.blockHash.slice(0, 2))) into.blocks.push({ ...file, ...name });
    else if (entry.isFile() && isTemporaryName(entry.name)) into.temporaries.push(file);
    else if (entry.isDirectory()) into.strangers.push({ ...file, bytes: bytesUnder(path, into.unreadable) });
    else into.strangers.push(file);
  }
}

export function walkCache(paths: BlockPaths): Walk {
  const walk = { blocks: [] as FoundBlock[], temporaries: [] as FoundFile[], strangers: [] as FoundFile[], unreadable: [] as Walk['unreadable'] };
  for (const entry of entriesOf(paths.blocks, walk.unreadable)) {
    const path = join(paths.blocks, entry.name);
    if (entry.isDirectory() && isFanOutName(entry.name)) {
      walkFanOut(path, walk);
      continue;
    }
    const file = physicalSize(path);
    if (file !== null) walk.strangers.push(entry.isDirectory() ? { ...file, bytes: bytesUnder(path, walk.unreadable) } : file);
  }
  return { ...walk, otherBytes: bytesUnder(paths.cacheDir, walk.unreadable, paths.blocks) };
}
