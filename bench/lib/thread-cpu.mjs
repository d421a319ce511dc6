/**
 * CPU time of this process by kind of thread, on Linux. On a machine that does other work it scatters far less than the clock does: it
 * tells what persistence costs where the clock tells who else was running.
 */
import { readdirSync, readFileSync } from 'node:fs';

/** Names that the threads give themselves; those that MLX and the BLAS start have the name of the thread that started them. */
const KINDS = { 'tidemark-engine': 'engine', 'tm-writer': 'writer', 'tm-store': 'storeWorker' };

/** Milliseconds so far: `engine`, `writer`, `storeWorker`, `other`; null where the system does not tell. */
export function threadCpu() {
  if (process.platform !== 'linux') return null;
  const found = { engine: 0, writer: 0, storeWorker: 0, other: 0 };
  for (const task of readdirSync('/proc/self/task')) {
    try {
      const name = readFileSync(`/proc/self/task/${task}/comm`, 'latin1').trim();
      const [nanoseconds] = readFileSync(`/proc/self/task/${task}/schedstat`, 'latin1').split(' ');
      found[KINDS[name] ?? 'other'] += Number(nanoseconds) / 1e6;
    } catch (error) {
      // A thread that ended between the listing and the look.
      if (error.code !== 'ENOENT' && error.code !== 'ESRCH') throw error;
    }
  }
  return found;
}

/** What was used between two looks. */
export function usedBetween(before, after) {
  return before === null || after === null ? null : Object.fromEntries(Object.keys(after).map((kind) => [kind, after[kind] - before[kind]]));
}
