/** What all our Workers have in common on the side of their parent. */
import type { Worker } from 'node:worker_threads';

/**
 * Node flags for our Workers. By default a Worker inherits the process's flags; with `node --input-type=module -e …` it would
 * inherit the input type, which Node refuses for a Worker that is a file. Passing a list of our own in general is no way out:
 * Node then refuses every flag that belongs to the process (--expose-gc, --max-old-space-size, …).
 */
export function workerFlags(): { execArgv?: string[] } {
  return process.execArgv.some((flag) => flag.startsWith('--input-type') || flag.startsWith('--experimental-default-type')) ? { execArgv: [] } : {};
}

/** Settles with the exit code when the thread has ended. (`once` of node:events would reject when an uncaught error ends it.) */
export function exitOf(worker: Worker): Promise<number> {
  return new Promise((resolve) => worker.once('exit', resolve));
}
