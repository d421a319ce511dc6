/**
 * The algorithm of every lock: a futex with the owner in its word, fair under contention.
 *
 * Two words. STATE is 0 (free) or `token << 1 | contended`, so that taking the lock and naming the owner are one
 * compare-and-swap: a thread that dies at any instruction leaves either a free lock or a named owner. PRIORITY is 0 or the
 * token of the one waiting thread that goes next.
 *
 * Fairness: a thread barges (takes a free lock at once) until somebody has waited FAIR_AFTER_MS. That waiter claims
 * PRIORITY; from then on everybody else stands back, asleep on PRIORITY, until it has had its turn. A plain futex mutex
 * starves threads for half a second and more; this keeps most of its throughput.
 *
 * What keeps wake-ups from being lost:
 * - A waiter sets the contended bit and sleeps on that very value; the release exchanges the word, so it either sees the
 *   bit and notifies, or changes the value before the waiter sleeps.
 * - Whoever slept takes the lock *with* the contended bit, because others may sleep too.
 * - A waiter that was woken and then gives up has set the bit again first, or passes the wake-up on: a notify that it
 *   consumed belongs to the next sleeper.
 * - Whoever leaves the slow path wakes one thread that stands back; that one does the same in turn.
 * Every sleep is cut into slices, which bound how late the death of the owner (or of the thread with PRIORITY) is noticed.
 */
import { now } from './clock.ts';
import { SLICE_MS, waitForLock } from './waits.ts';

export const STATE = 0;
export const PRIORITY = 1;

const CONTENDED = 1;
const FAIR_AFTER_MS = 1;

export type Outcome = 'acquired' | 'timed out' | 'owner died';

/** Takes a free lock unless somebody has priority. Never sleeps. */
export function tryTake(words: Int32Array, at: number, me: number): boolean {
  return Atomics.load(words, at + PRIORITY) === 0 && Atomics.compareExchange(words, at + STATE, 0, me << 1) === 0;
}

/** Questions about the life that a token names. */
export interface Lives {
  /** It will never take a turn that it has claimed. */
  isDead(token: number): boolean;
  /** Its lock is lost: waiting for it is in vain. */
  isLost(token: number): boolean;
}

/** Takes the lock or sleeps for it. */
export function take(words: Int32Array, at: number, me: number, timeoutMs: number, lives: Lives): Outcome {
  const start = now();
  const end = start + timeoutMs;
  let outcome: Outcome = 'timed out';
  for (;;) {
    const priority = Atomics.load(words, at + PRIORITY);
    if (priority !== 0 && priority !== me) {
      if (lives.isDead(priority)) {
        Atomics.compareExchange(words, at + PRIORITY, priority, 0);
        continue;
      }
      Atomics.notify(words, at + STATE, 1); // pass on a wake-up that this thread may have consumed
      const left = end - now();
      if (left <= 0) break;
      waitForLock(words, at + PRIORITY, priority, Math.min(left, SLICE_MS));
      continue;
    }
    const state = Atomics.load(words, at + STATE);
    if (state === 0) {
      if (Atomics.compareExchange(words, at + STATE, 0, (me << 1) | CONTENDED) !== 0) continue;
      outcome = 'acquired';
      break;
    }
    const contended = state | CONTENDED;
    if (state !== contended && Atomics.compareExchange(words, at + STATE, state, contended) !== state) continue;
    if (lives.isLost(state >>> 1)) {
      outcome = 'owner died';
      break;
    }
    const time = now();
    if (time >= end) break;
    if (priority === 0) {
      const patience = start + FAIR_AFTER_MS - time;
      if (patience <= 0) {
        Atomics.compareExchange(words, at + PRIORITY, 0, me);
        continue;
      }
      waitForLock(words, at + STATE, contended, Math.min(end - time, patience));
    } else {
      waitForLock(words, at + STATE, contended, Math.min(end - time, SLICE_MS));
    }
  }
  if (Atomics.load(words, at + PRIORITY) === me) Atomics.store(words, at + PRIORITY, 0);
  Atomics.notify(words, at + PRIORITY, 1);
  return outcome;
}

/** Only the owner calls this. */
export function release(words: Int32Array, at: number): void {
  if ((Atomics.exchange(words, at + STATE, 0) & CONTENDED) !== 0) Atomics.notify(words, at + STATE, 1);
}

/** Takes a lock whose owner is dead. False when another thread was faster. */
export function takeFromDead(words: Int32Array, at: number, me: number, lives: Lives): boolean {
  const state = Atomics.load(words, at + STATE);
  return state !== 0 && lives.isLost(state >>> 1) && Atomics.compareExchange(words, at + STATE, state, (me << 1) | CONTENDED) === state;
}

/** Token of the owner, 0 when free. */
export function ownerOf(words: Int32Array, at: number): number {
  return Atomics.load(words, at + STATE) >>> 1;
}
