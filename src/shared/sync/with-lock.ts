import type { TimedMutex } from './mutex.ts';
import type { ReentrantLock } from './reentrant.ts';

/**
 * Runs `fn` under `lock` and releases it whatever happens.
 * @throws LOCK_TIMEOUT when it is not had within `timeoutMs`, and what `acquire` throws.
 */
export function withLock<T>(lock: TimedMutex | ReentrantLock, timeoutMs: number, site: string, fn: () => T): T {
  if (!lock.acquire(timeoutMs, site)) throw lock.timeoutError(timeoutMs, site);
  try {
    return fn();
  } finally {
    // A condition wait inside `fn` may have ended without the mutex (its owner died); then there is nothing to release.
    if (lock.isHeldByMe()) lock.release();
  }
}
