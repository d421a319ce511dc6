/**
 * The clock of everything that waits. Captured at module load: fake timers of a test runner replace `performance.now`
 * later, while `Atomics.wait` goes on sleeping for real, so a deadline read from the replaced clock would never come.
 */
import { performance } from 'node:perf_hooks';

const origin = performance.timeOrigin;
const read: () => number = performance.now.bind(performance);

/** Milliseconds on a monotonic clock that all threads of the process share. */
export function now(): number {
  return origin + read();
}
