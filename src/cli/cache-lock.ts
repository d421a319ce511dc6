/**
 * The cache folder's lock, for verbs that change the folder: they run only while no other process writes it.
 */
import { join } from 'node:path';
import { loadNativeCore, nativeCoreProblem } from '../shared/native-core.ts';
import { LOCK_FILE } from './cache-walk.ts';
import { CommandError } from './command-error.ts';

export async function withCacheLock<R>(dir: string, act: () => R | Promise<R>): Promise<R> {
  const core = loadNativeCore();
  if (core === null) throw new CommandError('NATIVE_UNAVAILABLE', `the cache folder cannot be locked: ${nativeCoreProblem()}`, { dir });
  const lock = core.flockTry(join(dir, LOCK_FILE));
  if (typeof lock !== 'number') {
    if (lock.held) throw new CommandError('CACHE_LOCKED', `another process is using ${dir}; close it and try again`, { dir });
    if (lock.unsupported) throw new CommandError('LOCK_UNSUPPORTED', `the file system of ${dir} has no file locks, so nothing is changed there`, { dir });
    throw new CommandError('CACHE_DIR_UNUSABLE', `the lock of ${dir} cannot be taken: ${lock.message}`, { dir, errno: lock.errno });
  }
  try {
    return await act();
  } finally {
    core.flockRelease(lock);
  }
}
