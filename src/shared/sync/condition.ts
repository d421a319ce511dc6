/**
 * A condition variable: a sequence word that every broadcast bumps.
 *
 * What keeps wake-ups from being lost:
 * - The sequence is read before the mutex is released, so a broadcast after that changes the value the waiter sleeps on.
 * - A broadcast bumps first and notifies then, and never depends on a count of waiters.
 * - A broadcaster that holds no lock (the main thread setting an abort word) may act between the waiter's test of its
 *   predicate and its wait. Such predicates are tested after `ticket()` and the ticket is given to `wait`; `waitUntil` does so.
 * Any result proves nothing: test the predicate again under the mutex.
 */
import { TidemarkError } from '../errors.ts';
import { now } from './clock.ts';
import { KIND, ID as LOCK_ID, NAME as LOCK_NAME, raise } from './lock.ts';
import { ownerOf } from './lock-word.ts';
import type { TimedMutex } from './mutex.ts';
import type { ReentrantLock } from './reentrant.ts';
import { SLICE_MS, waitForCondition } from './waits.ts';

const SEQ = 0;
export const CONDITION_LONGEST_WAIT_US = 6;
export const CONDITION = 3;

/** How long a waiter that was woken waits for the mutex itself. Mutexes with conditions are held for microseconds. */
const REACQUIRE_MS = 10_000;

export class Condition {
  static readonly WORDS = 16;

  readonly name: string;
  readonly id: number;
  readonly mutex: TimedMutex | ReentrantLock;
  readonly #words: Int32Array;
  readonly #at: number;
  readonly #nameId: number;

  constructor(words: Int32Array, at: number, mutex: TimedMutex | ReentrantLock, name: string) {
    const { table } = mutex.self;
    this.#words = words;
    this.#at = at;
    this.mutex = mutex;
    this.name = name;
    this.#nameId = table.strings.intern(name);
    words[at + LOCK_NAME] = this.#nameId;
    words[at + KIND] = CONDITION;
    if (Atomics.load(words, at + LOCK_ID) === 0) Atomics.compareExchange(words, at + LOCK_ID, 0, table.nextLockId());
    this.id = Atomics.load(words, at + LOCK_ID);
  }

  /** The state of the condition before a predicate is tested; give it to `wait`. */
  ticket(): number {
    return Atomics.load(this.#words, this.#at + SEQ);
  }

  /**
   * Releases the mutex, sleeps until a broadcast after `ticket` (default: after now) or the deadline, takes the mutex again.
   * @throws LOCK_NOT_OWNER, LOCK_OWNER_DIED when the mutex's owner died meanwhile, LOCK_TIMEOUT when the mutex cannot be had
   * again within 10 s; after the last two the mutex is not held.
   */
  wait(timeoutMs: number, ticket?: number, site = this.name): 'notified' | 'timeout' {
    const { mutex } = this;
    const { self } = mutex;
    if (!mutex.isHeldByMe()) {
      throw new TidemarkError('LOCK_NOT_OWNER', `Condition '${this.name}' needs lock '${mutex.name}' to be held by this thread.`, {
        details: { lock: mutex.name },
      });
    }
    if (self.held[self.held.length - 1] !== mutex) {
      throw new TidemarkError(
        'LOCK_RANK',
        `Waiting for condition '${this.name}' while a lock above '${mutex.name}' is held would keep it from others. Release it first.`,
        {
          details: { lock: mutex.name },
        },
      );
    }
    const begin = now();
    const seen = ticket ?? this.ticket(); // while the mutex is still held
    const siteId = self.table.strings.intern(site);
    const depth = mutex.releaseAll();
    let notified: boolean;
    self.beginWait('condition', this.id, this.#nameId, siteId);
    try {
      notified = this.#sleep(begin + timeoutMs, seen);
    } finally {
      self.endWait();
    }
    raise(this.#words, this.#at + CONDITION_LONGEST_WAIT_US, (now() - begin) * 1000);
    if (!mutex.acquire(REACQUIRE_MS, site)) throw mutex.timeoutError(REACQUIRE_MS, site);
    mutex.restore(depth);
    return notified ? 'notified' : 'timeout';
  }

  /** Leaves early when the mutex's owner is dead: taking it will name the dead. */
  #sleep(end: number, ticket: number): boolean {
    const { mutex } = this;
    const { table } = mutex.self;
    for (;;) {
      if (Atomics.load(this.#words, this.#at + SEQ) !== ticket) return true;
      const left = end - now();
      if (left <= 0) return false;
      const owner = ownerOf(mutex.words, mutex.at);
      if (owner !== 0 && table.isDead(owner)) return true;
      waitForCondition(this.#words, this.#at + SEQ, ticket, Math.min(left, SLICE_MS));
    }
  }

  /** Waits until `predicate` holds; false when the time ran out first. The predicate is tested under the mutex, at least every 50 ms. */
  waitUntil(predicate: () => boolean, timeoutMs: number, site?: string): boolean {
    const end = now() + timeoutMs;
    for (;;) {
      const ticket = this.ticket();
      if (predicate()) return true;
      const left = end - now();
      if (left <= 0) return false;
      this.wait(Math.min(left, SLICE_MS), ticket, site);
    }
  }

  /** Wakes every waiter. Needs no lock, so the main thread may call it after it has written the word that waiters test. */
  broadcast(): void {
    Condition.broadcastAt(this.#words, this.#at);
  }

  /** As `broadcast`, for threads that have no lock objects. */
  static broadcastAt(words: Int32Array, at: number): void {
    Atomics.add(words, at + SEQ, 1);
    Atomics.notify(words, at + SEQ);
  }
}
