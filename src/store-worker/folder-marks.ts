/**
 * Tells backup and search programs to leave a cache folder out: everything in it can be computed again, and all of it changes often.
 *
 * `CACHEDIR.TAG` is what many backup programs look for, on any platform. macOS has its own: `.metadata_never_index` for Spotlight and
 * an extended attribute for Time Machine (what `tmutil addexclusion` sets). A folder that holds anything which is not ours is not
 * marked: an app that keeps its own files there wants them in its backups.
 */
import { join } from 'node:path';
import { BLOCKS_FOLDER, INDEX_FILE } from '../shared/blocks/paths.ts';
import { errnoOf, type Files } from '../shared/files.ts';
import type { NativeCore } from '../shared/native-core.ts';
import { STAGING_FOLDER } from '../shared/staging.ts';

export const CACHE_TAG = 'CACHEDIR.TAG';
export const NEVER_INDEX = '.metadata_never_index';
export const BACKUP_ATTRIBUTE = 'com.apple.metadata:com_apple_backup_excludeItem';

/** The first line is fixed by the convention. */
const TAG_TEXT =
  'Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of tidemark. Backups may leave it out; it can be deleted when no process uses it.\n';

/** A binary property list with the one string that Time Machine looks for. */
export const BACKUP_VALUE: Uint8Array = propertyList('com.apple.backupd');

/** Disks that take no file now: the store says so itself. */
const TOLD_ELSEWHERE = new Set(['ENOSPC', 'EDQUOT', 'EROFS']);
const ENOTSUP = 45;

/** Files of a mark, for those who list the folder. */
export function isMark(name: string): boolean {
  return name === CACHE_TAG || name === NEVER_INDEX;
}

/** What macOS' Finder leaves anywhere. */
const LITTER = new Set(['.DS_Store', '.localized']);

function isOurs(name: string): boolean {
  return name === 'lock' || name === BLOCKS_FOLDER || name === STAGING_FOLDER || name.startsWith(INDEX_FILE) || isMark(name) || LITTER.has(name);
}

/** Marks the folder unless it is marked, or holds something of others. Returns what went wrong, for people, or null. */
export function markCacheFolder(
  files: Files,
  cacheDir: string,
  platform: NodeJS.Platform,
  core: Pick<NativeCore, 'getAttribute' | 'setAttribute'> | null,
): string | null {
  try {
    const names = files.list(cacheDir);
    if (!names.every(isOurs)) return null;
    if (!names.includes(CACHE_TAG)) put(files, join(cacheDir, CACHE_TAG), TAG_TEXT);
    if (platform !== 'darwin') return null;
    if (!names.includes(NEVER_INDEX)) put(files, join(cacheDir, NEVER_INDEX), '');
    if (core === null || core.getAttribute(cacheDir, BACKUP_ATTRIBUTE) !== null) return null;
    const errno = core.setAttribute(cacheDir, BACKUP_ATTRIBUTE, BACKUP_VALUE);
    return errno === 0 || errno === ENOTSUP ? null : `the cache folder could not be left out of backups (errno ${errno})`;
  } catch (error) {
    return TOLD_ELSEWHERE.has(errnoOf(error)) ? null : `the cache folder could not be marked as a cache: ${(error as Error).message}`;
  }
}

function put(files: Files, path: string, text: string): void {
  const fd = files.createExclusive(path);
  try {
    if (text !== '') files.writeAll(fd, Buffer.from(text), 0, path);
  } catch (error) {
    // Half a mark would be taken for a whole one at the next start.
    files.removeFile(path);
    throw error;
  } finally {
    files.close(fd);
  }
}

/** `bplist00`, one ASCII string, its offset, and the trailer. */
function propertyList(text: string): Uint8Array {
  const head = Buffer.concat([Buffer.from('bplist00'), Buffer.from([0x5f, 0x10, text.length]), Buffer.from(text, 'latin1')]);
  const trailer = Buffer.alloc(32);
  trailer[6] = 1; // bytes of an offset
  trailer[7] = 1; // bytes of a reference
  trailer[15] = 1; // objects
  trailer[31] = head.length; // where the offsets are
  return Uint8Array.from(Buffer.concat([head, Buffer.from([8]), trailer]));
}
