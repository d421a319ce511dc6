/**
 * `tidemark/sync`: locks over SharedArrayBuffer for worker threads: a mutex with timeout, a reentrant lock and a condition
 * variable. They are fair under contention, notice within 100 ms when an owner dies, check lock ranks in development, and
 * can be read from outside while every thread is stuck.
 *
 * @example
 * ```ts
 * // main.js
 * import { Worker } from 'node:worker_threads';
 * import { ThreadTable, LockTable } from 'tidemark/sync';
 *
 * export const LOCKS = [{ name: 'queue', rank: 1, conditions: ['filled'] }];
 * const threads = ThreadTable.create();
 * const words = new SharedArrayBuffer(LockTable.wordsFor(LOCKS) * 4);
 * new Worker('./worker.js', { workerData: { threads, words } });
 *
 * // worker.js
 * const me = new ThreadTable(workerData.threads).enter('other', 'consumer');
 * const table = new LockTable(new Int32Array(workerData.words), 0, LOCKS);
 * const queue = table.mutex('queue', me);
 * const filled = table.condition('filled', queue);
 * withLock(queue, 1000, 'consume', () => {
 *   if (filled.waitUntil(() => hasWork(), 5000)) takeWork();
 * });
 * ```
 *
 * The app's main thread may read (`readAll`, `diagnose`) and broadcast, but taking a lock there throws LOCK_ON_MAIN_THREAD:
 * it would stop timers, signals and the 'exit' events of workers. A worker that ends is marked dead by the native core; where
 * that is not built, call `threads.markWorkerDead(worker.threadId)` from its 'exit' event (read threadId before).
 */
export * from './shared/sync/index.ts';
