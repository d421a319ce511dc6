/**
 * The only places where a thread of ours sleeps. Each kind of wait has a function of its own, because a CPU profile shows
 * a sleeping thread as self time of the function that called `Atomics.wait`: so the profile tells waiting from work.
 */
type WaitResult = 'ok' | 'not-equal' | 'timed-out';

/** Longest uninterrupted sleep of a wait that depends on another thread: the death of that thread is noticed this fast. */
export const SLICE_MS = 50;

export function waitForLock(words: Int32Array, index: number, value: number, ms: number): WaitResult {
  return Atomics.wait(words, index, value, ms);
}

export function waitForCondition(words: Int32Array, index: number, value: number, ms: number): WaitResult {
  return Atomics.wait(words, index, value, ms);
}

export function waitForWork(words: Int32Array, index: number, value: number, ms: number): WaitResult {
  return Atomics.wait(words, index, value, ms);
}
