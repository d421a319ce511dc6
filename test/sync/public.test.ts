/** `tidemark/sync` as an app uses it: by its public name, from Workers of the app's own. */
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { dist, ROOT } from '../helpers/paths.ts';
import { startWorker } from '../helpers/worker.ts';

test('the public names are there', async () => {
  const sync = await import(dist('sync'));
  for (const name of ['ThreadTable', 'TimedMutex', 'ReentrantLock', 'Condition', 'LockTable', 'withLock', 'diagnose', 'RANKS', 'LEAF'])
    expect(sync[name], name).toBeDefined();
});

test('the example of the documentation works', async () => {
  const { ThreadTable, LockTable } = await import(dist('sync'));
  const LOCKS = [{ name: 'queue', rank: 1, conditions: ['filled'] }];
  const threads = ThreadTable.create();
  const words = new SharedArrayBuffer(LockTable.wordsFor(LOCKS) * 4);
  const counts = new SharedArrayBuffer(8);
  const code = (body: string) => `
    import { parentPort, workerData } from 'node:worker_threads';
    import { ThreadTable, LockTable, withLock } from '${pathToFileURL(`${ROOT}dist/sync.js`)}';
    const me = new ThreadTable(workerData.threads).enter('other', 'app');
    const table = new LockTable(new Int32Array(workerData.words), 0, workerData.LOCKS);
    const queue = table.mutex('queue', me);
    const filled = table.condition('filled', queue);
    const counts = new Int32Array(workerData.counts);
    ${body}`;
  const consumer = code(`
    const result = withLock(queue, 10000, 'consume', () => {
      if (!filled.waitUntil(() => counts[0] > 0, 10000)) return 'late';
      counts[0] -= 1;
      return 'taken';
    });
    parentPort.postMessage(result);`);
  const producer = code(`
    withLock(queue, 10000, 'produce', () => { counts[0] += 1; });
    filled.broadcast();
    parentPort.postMessage('produced');`);
  const run = (source: string) => startWorker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), { workerData: { threads, words, LOCKS, counts } });
  const answers = [run(consumer), run(producer)].map((worker) => once(worker, 'message'));
  expect((await Promise.all(answers)).map(([answer]) => answer)).toEqual(['taken', 'produced']);
});

test('the package exports it under its name', async () => {
  const { runNode } = await import('../helpers/child.ts');
  const result = await runNode(['--input-type=module', '-e', `import { RANKS } from 'tidemark/sync'; console.log(RANKS.pending)`], { cwd: ROOT });
  expect(result).toMatchObject({ code: 0, stdout: '2\n' });
});
