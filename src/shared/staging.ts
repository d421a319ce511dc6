/**
 * Staging: where boundary snapshots lie between the writer and the block store.
 *
 *   <cacheDir>/_boundary_snapshots/<session>/<sha256(request id)>/<tokenCount>.safetensors
 *   <cacheDir>/_boundary_snapshots/<session>.lock            held (flock) as long as the session's process lives
 *   <cacheDir>/_boundary_snapshots/_promote/<session>-….safetensors    taken files on their way into the block store
 *
 * A session is alive as long as its lock file is locked, never by process id. The lock is had before the folder is made, so
 * a folder without a held lock belongs to the dead, and whoever finds one removes it.
 */
import { fstatSync, lstatSync } from 'node:fs';
import { join } from 'node:path';
import type { Files } from './files.ts';
import { keyToHex, type RequestKey } from './session/request-key.ts';

export const STAGING_FOLDER = '_boundary_snapshots';
export const PROMOTE_FOLDER = '_promote';
const LOCK_SUFFIX = '.lock';

/** `held`: somebody else has it. `unsupported`: the file system has no such locks. */
export interface LockRefusal {
  message: string;
  held: boolean;
  unsupported: boolean;
}

/** The OS file locks of the native core. */
export interface FileLocks {
  /** A descriptor that holds the lock, or why not. */
  flockTry(path: string): number | LockRefusal;
  flockRelease(fd: number): unknown;
}

/** Ids that make one path component and cannot be mistaken for a lock file or `_promote`. */
export function isSessionId(id: string): boolean {
  return /^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$/.test(id);
}

export function stagingRootOf(cacheDir: string): string {
  return join(cacheDir, STAGING_FOLDER);
}

export function requestFolder(stagingDir: string, key: RequestKey): string {
  return join(stagingDir, keyToHex(key));
}

export function stagedPath(stagingDir: string, key: RequestKey, tokenCount: number): string {
  return join(requestFolder(stagingDir, key), `${tokenCount}.safetensors`);
}

export function sessionLockPath(stagingRoot: string, session: string): string {
  return join(stagingRoot, session + LOCK_SUFFIX);
}

/** Makes the staging root and `_promote`; refuses links in their place. */
export function ensureStagingRoot(stagingRoot: string, files: Files): void {
  files.ensureFolder(stagingRoot);
  files.ensureFolder(join(stagingRoot, PROMOTE_FOLDER));
}

/**
 * Takes the session's lock and makes its folder; the lock's descriptor, or null when the lock is not to be had (the id is in
 * use, or a cleaner is just looking at it: use another id). Main thread: a descriptor of a Worker closes with the Worker.
 */
export function openSessionStaging(stagingRoot: string, session: string, files: Files, locks: FileLocks): number | LockRefusal {
  const path = sessionLockPath(stagingRoot, session);
  const fd = locks.flockTry(path);
  if (typeof fd !== 'number') return fd;
  // A cleaner may have removed the file between its opening and its locking here: then the lock guards nothing.
  const named = lstatSync(path, { throwIfNoEntry: false });
  if (named === undefined || named.ino !== fstatSync(fd).ino) {
    locks.flockRelease(fd);
    return { message: 'the lock file was removed meanwhile', held: true, unsupported: false };
  }
  files.ensureFolder(join(stagingRoot, session));
  return fd;
}

/** Removes what the session staged, then gives its lock up. Nobody may use the session any more. */
export function removeSessionStaging(stagingRoot: string, session: string, files: Files, lock: { fd: number; locks: FileLocks } | null): void {
  files.removeTree(join(stagingRoot, session));
  removePromoted(stagingRoot, files, (owner) => owner === session);
  files.removeFile(sessionLockPath(stagingRoot, session));
  if (lock !== null) lock.locks.flockRelease(lock.fd);
}

/**
 * Removes the staging of sessions whose process is gone, taken files included; returns their ids. That of living ones is
 * not touched. Called at the writer's start; safe beside other cleaners.
 */
export function removeDeadStaging(stagingRoot: string, files: Files, locks: FileLocks): string[] {
  const removed: string[] = [];
  const owners = files.list(stagingRoot).map((name) => (name.endsWith(LOCK_SUFFIX) ? name.slice(0, -LOCK_SUFFIX.length) : name));
  const promoters = files.list(join(stagingRoot, PROMOTE_FOLDER)).map(promotedBy);
  for (const session of new Set([...owners, ...promoters].filter(isSessionId))) {
    const lockPath = sessionLockPath(stagingRoot, session);
    const fd = locks.flockTry(lockPath);
    if (typeof fd !== 'number') continue;
    try {
      files.removeTree(join(stagingRoot, session));
      removePromoted(stagingRoot, files, (owner) => owner === session);
      files.removeFile(lockPath);
      removed.push(session);
    } finally {
      locks.flockRelease(fd);
    }
  }
  return removed;
}

/** A name in `_promote` that says whose it is. */
export function promotedPath(stagingRoot: string, session: string, key: RequestKey, tokenCount: number, generation: number): string {
  return join(stagingRoot, PROMOTE_FOLDER, `${session}.${keyToHex(key).slice(0, 16)}-${tokenCount}-${generation}.safetensors`);
}

function promotedBy(name: string): string {
  return name.split('.')[0]!;
}

function removePromoted(stagingRoot: string, files: Files, belongs: (session: string) => boolean): void {
  const folder = join(stagingRoot, PROMOTE_FOLDER);
  for (const name of files.list(folder)) if (belongs(promotedBy(name))) files.removeFile(join(folder, name));
}
