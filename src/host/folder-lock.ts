/**
 * Who may write a cache folder: makes the folder, takes its lock, says what can be done with it.
 *
 * The lock is an flock on `<cacheDir>/lock`, taken on the main thread (a descriptor that a Worker opened closes when the
 * Worker ends) and held until snapshot writer and store worker are gone. Never fcntl: any close of the file in this process
 * would drop such a lock.
 */
import { mkdir, realpath, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import type { ErrorCode } from '../shared/errors.ts';
import { errnoOf } from '../shared/files.ts';
import { loadNativeCore, type NativeCore, nativeCoreProblem } from '../shared/native-core.ts';
import type { StoreMode } from '../shared/worker-init.ts';

/** What an engine is told, once, when its cache works less than it should. */
export interface Degradation {
  readonly code: ErrorCode;
  readonly message: string;
  readonly details: Record<string, unknown>;
}

export interface FolderLock {
  readonly mode: StoreMode;
  /** Holds the lock; null in read-only mode. */
  readonly fd: number | null;
  readonly degraded: Degradation | null;
}

/** Makes the folder with its parents (0700) and resolves it. */
export async function prepareFolder(dir: string): Promise<{ path: string; degraded: null } | { path: null; degraded: Degradation }> {
  try {
    await makeFolders(resolve(dir));
    const path = await realpath(dir);
    if ((await stat(path)).isDirectory()) return { path, degraded: null };
    return unusable(dir, 'ENOTDIR', 'it is not a folder');
  } catch (error) {
    return unusable(dir, errnoOf(error), (error as Error).message);
  }
}

/** Parents first, each by itself: a recursive `mkdir` says ENOENT for whatever keeps a parent from being made. */
async function makeFolders(dir: string): Promise<void> {
  try {
    await mkdir(dir, { mode: 0o700 });
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'EEXIST') return;
    if (errno !== 'ENOENT' || dirname(dir) === dir) throw error;
    await makeFolders(dirname(dir));
    await makeFolders(dir);
  }
}

function unusable(dir: string, errno: string, why: string): { path: null; degraded: Degradation } {
  return {
    path: null,
    degraded: {
      code: 'CACHE_DIR_UNUSABLE',
      message: `The cache folder '${dir}' cannot be used (${why}). Nothing is stored or restored; answers are not affected. Give a folder that this process can make and write.`,
      details: { path: dir, errno },
    },
  };
}

const WITHOUT = 'What is stored there is still used; nothing is added.';

/** Takes the lock of a folder, without waiting, or says why this process only reads there. */
export function lockFolder(dir: string, core: Pick<NativeCore, 'flockTry'> | null = loadNativeCore()): FolderLock {
  const path = join(dir, 'lock');
  if (core === null) return readOnly('LOCK_UNSUPPORTED', `The cache folder '${dir}' cannot be locked: ${nativeCoreProblem()}. ${WITHOUT}`, { path });
  const taken = core.flockTry(path);
  if (typeof taken === 'number') return { mode: 'writer', fd: taken, degraded: null };
  const { errno, message, held, unsupported } = taken;
  const details = { path, errno };
  if (held)
    return readOnly(
      'CACHE_LOCKED',
      `Another process writes the cache folder '${dir}'. ${WITHOUT} Give this engine a folder of its own, or close the other process.`,
      details,
    );
  if (unsupported) return readOnly('LOCK_UNSUPPORTED', `The file system of '${dir}' has no flock (${message}). ${WITHOUT} Use a local folder.`, details);
  if (ERRNO_FULL.has(errno)) return readOnly('CACHE_FULL', `There is no space left for the cache folder '${dir}' (${message}). ${WITHOUT}`, details);
  return readOnly('CACHE_READ_ONLY', `The cache folder '${dir}' cannot be written (${message}). ${WITHOUT}`, details);
}

/** ENOSPC, EDQUOT (Linux, macOS). */
const ERRNO_FULL = new Set([28, 122, 69]);

function readOnly(code: ErrorCode, message: string, details: Record<string, unknown>): FolderLock {
  return { mode: 'read-only', fd: null, degraded: { code, message, details } };
}

/** Gives the lock up. */
export function unlockFolder(lock: FolderLock): void {
  if (lock.fd !== null) loadNativeCore()?.flockRelease(lock.fd);
}
