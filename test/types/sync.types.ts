/**
 * `tidemark/sync` as an app's worker uses it. Read by tsc only.
 */
import { LockTable, ThreadTable, withLock } from 'tidemark/sync';

const LOCKS = [{ name: 'queue', rank: 1, conditions: ['filled'] }];

export function worker(threads: SharedArrayBuffer, words: SharedArrayBuffer): number {
  const me = new ThreadTable(threads).enter('other', 'consumer');
  const table = new LockTable(new Int32Array(words), 0, LOCKS);
  const queue = table.mutex('queue', me);
  const filled = table.condition('filled', queue);
  const answer = withLock(queue, 1000, 'consume', () => (filled.waitUntil(() => true, 5000) ? 1 : 0));
  // @ts-expect-error: a lock is taken by a thread
  table.mutex('queue');
  // @ts-expect-error: no such kind of thread
  new ThreadTable(threads).enter('somebody', 'consumer');
  return answer;
}
