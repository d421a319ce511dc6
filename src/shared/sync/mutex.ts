/** A mutex with timeout over shared words. See lock-word.ts for the algorithm. */
import { Lock, MUTEX } from './lock.ts';
import type { LockSpec } from './ranks.ts';
import type { ThreadHandle } from './thread-table.ts';

export class TimedMutex extends Lock {
  /**
   * An object over `TimedMutex.WORDS` zeroed words at `at`. Each thread makes its own, with its own handle.
   */
  constructor(words: Int32Array, at: number, spec: LockSpec, self: ThreadHandle) {
    super(words, at, spec, self, MUTEX);
  }

  /**
   * Takes the lock, or returns false after `timeoutMs` (0: without waiting). `site` names the caller for `diagnose()`.
   * @throws LOCK_OWNER_DIED when the owner died holding it, LOCK_RANK, LOCK_ON_MAIN_THREAD.
   */
  acquire(timeoutMs: number, site: string): boolean {
    return this.take(timeoutMs, site);
  }

  /** @throws LOCK_NOT_OWNER when this thread does not hold it. */
  release(): void {
    this.drop();
  }
}
