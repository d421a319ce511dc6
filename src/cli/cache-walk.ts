/**
 * What lies in a cache folder, read from the files themselves: no index, no engine, no lock. Other processes may write
 * meanwhile; a file that goes while it is looked at is left out.
 */
import { lstatSync, realpathSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { readImageHeader } from '../shared/blocks/block-file.ts';
import type { ImageMiss, ParsedImage } from '../shared/blocks/image.ts';
import { BlockPaths, INDEX_FILE, isFanOutName, isTemporaryName, parseBlockName } from '../shared/blocks/paths.ts';
import { Files } from '../shared/files.ts';
import type { BlockPart } from '../shared/layer-state.ts';
import { STAGING_FOLDER } from '../shared/staging.ts';
import { isMark } from '../store-worker/folder-marks.ts';
import { CommandError } from './command-error.ts';

export const LOCK_FILE = 'lock';

/** 'mark': for backup and search programs; 'temporary': being written, or left by a crash; 'foreign': nothing this library makes. */
export type FileKind = BlockPart | 'index' | 'lock' | 'mark' | 'staging' | 'temporary' | 'foreign';

export interface CacheFile {
  path: string;
  kind: FileKind;
  /** What the file occupies on disk. */
  diskBytes: number;
  bytes: number;
  modified: Date;
  /** For block files: from the name. */
  blockHash: string | null;
}

export interface BlockFileInfo extends CacheFile {
  kind: BlockPart;
  blockHash: string;
  /** Its header, or why it cannot be read. */
  image: ParsedImage | ImageMiss;
}

/** The real path of the folder that a `cache` verb works on; throws unless there is one. */
export function openCacheDir(dir: string): string {
  const found = statSync(dir, { throwIfNoEntry: false });
  if (found === undefined) throw new CommandError('CACHE_DIR_UNUSABLE', `there is no cache folder ${dir}; name another one with --cache DIR`, { dir });
  if (!found.isDirectory()) throw new CommandError('CACHE_DIR_UNUSABLE', `${dir} is not a folder; name the cache folder with --cache DIR`, { dir });
  return realpathSync(dir);
}

/** Every file under the cache folder; links are reported, not followed. */
export function* walkCache(dir: string): Generator<CacheFile, void, undefined> {
  const files = new Files();
  const { blocks } = new BlockPaths(dir);
  for (const name of files.list(dir)) {
    const path = join(dir, name);
    if (path === blocks) {
      for (const fan of files.list(path)) yield* fanOut(files, join(path, fan), isFanOutName(fan));
    } else if (name === STAGING_FOLDER) yield* tree(files, path, () => 'staging');
    else yield* tree(files, path, () => (name === LOCK_FILE ? 'lock' : isMark(name) ? 'mark' : name.startsWith(INDEX_FILE) ? 'index' : 'foreign'));
  }
}

function* fanOut(files: Files, path: string, ours: boolean): Generator<CacheFile, void, undefined> {
  yield* tree(files, path, (name) => (!ours ? 'foreign' : isTemporaryName(name) ? 'temporary' : (parseBlockName(name)?.part ?? 'foreign')));
}

function* tree(files: Files, path: string, kindOf: (name: string) => FileKind): Generator<CacheFile, void, undefined> {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return;
  if (stat.isDirectory()) {
    for (const name of files.list(path)) yield* tree(files, join(path, name), kindOf);
    return;
  }
  const name = path.slice(path.lastIndexOf('/') + 1);
  const kind = stat.isFile() ? kindOf(name) : 'foreign';
  const blockHash = kind === 'kv' || kind === 'state' ? parseBlockName(name)!.blockHash : null;
  yield { path, kind, diskBytes: stat.blocks * 512, bytes: stat.size, modified: stat.mtime, blockHash };
}

/** Block files with their headers read. */
export function* blockFiles(dir: string): Generator<BlockFileInfo, void, undefined> {
  const files = new Files();
  for (const file of walkCache(dir)) {
    if (file.blockHash === null) continue;
    const image = readImageHeader(files, file.path);
    // Evicted between the listing and the look.
    if (!image.ok && image.reason === 'gap') continue;
    yield { ...file, kind: file.kind as BlockPart, blockHash: file.blockHash, image };
  }
}

/** Fingerprints are long; as many digits as tell models apart in one folder. */
export function shortFingerprint(fingerprint: string): string {
  return fingerprint.slice(0, 12);
}
