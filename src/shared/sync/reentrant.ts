/** A lock that its owner may take again. Depth lies in shared words; only the owner changes it. */
import { DEPTH, Lock, REENTRANT } from './lock.ts';
import type { LockSpec } from './ranks.ts';
import type { ThreadHandle } from './thread-table.ts';

export class ReentrantLock extends Lock {
  constructor(words: Int32Array, at: number, spec: LockSpec, self: ThreadHandle) {
    super(words, at, spec, self, REENTRANT);
  }

  /** As `TimedMutex.acquire`; taking it again only raises the depth and never waits. */
  acquire(timeoutMs: number, site: string): boolean {
    if (this.isHeldByMe()) {
      this.words[this.at + DEPTH]!++;
      return true;
    }
    return this.take(timeoutMs, site);
  }

  /** Lowers the depth; at 0 the lock is free. @throws LOCK_NOT_OWNER */
  release(): void {
    if (this.isHeldByMe() && this.words[this.at + DEPTH]! > 1) {
      this.words[this.at + DEPTH]!--;
      return;
    }
    this.drop();
  }

  /** How often this thread holds it; 0 when it does not. */
  get depth(): number {
    return this.isHeldByMe() ? this.words[this.at + DEPTH]! : 0;
  }
}
