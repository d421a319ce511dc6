// A word in shared memory says that a thread is gone, however it ended. What must not happen: a waiter that never learns it, or learns it only
// through its parent's event loop.
import { describe, expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { exitOf } from '../helpers/worker.ts';
import { Thread } from './fixtures/thread.ts';

const words = (): Int32Array => new Int32Array(new SharedArrayBuffer(64));

async function until(test: () => boolean): Promise<void> {
  const deadline = performance.now() + 10_000;
  while (!test()) {
    if (performance.now() > deadline) throw new Error('not within 10 s');
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

describe.each(['ending', 'ended'])('moment %s', (moment) => {
  const register = `core.deathWord(g.data.words, 3, 77, '${moment}')`;

  test.each<[string, string]>([
    ['terminate', ''],
    ['process.exit in the thread', 'process.exit(0)'],
    ['an uncaught error', "setTimeout(() => { throw new Error('on purpose') }, 0)"],
    ['terminate in Atomics.wait', 'Atomics.wait(g.data.words, 9, 0)'],
    ['natural end', 'g.end()'],
  ])('%s', async (way, end) => {
    const w = words();
    const t = await Thread.start({ mlx: false, words: w });
    await t.value(register);
    expect(Atomics.load(w, 3)).toBe(0);
    t.worker.on('error', (error) => expect(error.message).toBe('on purpose'));
    if (end !== '') t.worker.postMessage(end);
    if (way.startsWith('terminate')) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      await t.worker.terminate();
    }
    await until(() => Atomics.load(w, 3) === 77);
    expect([...w].filter((x) => x !== 0)).toEqual([77]);
  });
});

test('the memory is kept alive by the registration alone', async () => {
  const script = `
    import { Worker } from 'node:worker_threads';
    const words = new Int32Array(new SharedArrayBuffer(1 << 20));
    const source = "const { workerData, parentPort } = require('node:worker_threads'); const core = require(workerData.addon);" +
      "let w = workerData.words; for (let i = 0; i < 100; i++) core.deathWord(w, i, 1); w = null; workerData.words = null; global.gc(); parentPort.postMessage(0); setInterval(() => global.gc(), 1)";
    const worker = new Worker(source, { eval: true, workerData: { addon: ${JSON.stringify(new URL('../../build/Release/tidemark_core.node', import.meta.url).pathname)}, words }, execArgv: [] });
    await new Promise((resolve) => worker.once('message', resolve));
    await new Promise((resolve) => setTimeout(resolve, 20));
    await worker.terminate();
    console.log(words.subarray(0, 101).reduce((a, b) => a + b, 0));`;
  const result = await runNode(['--expose-gc', '--input-type=module', '-e', script]);
  expect(result).toMatchObject({ code: 0, stdout: '100\n' });
});

test('ending comes before the drain of MLX work in flight, ended after it', async () => {
  const w = words();
  const t = await Thread.start({ mlx: true, words: w });
  await t.value(`
    core.deathWord(g.data.words, 0, 1, 'ended');
    core.deathWord(g.data.words, 1, 1);
    const s = mx.openEngineStream('cpu');
    mx.asyncEvaluate([native.testDelay(mx.zeros([1], 'float32', s), 400, s)]);`);
  const gone = exitOf(t.worker);
  void t.worker.terminate();
  await until(() => Atomics.load(w, 1) === 1);
  expect(Atomics.load(w, 0)).toBe(0);
  await gone;
  expect(Atomics.load(w, 0)).toBe(1);
});

test('ending comes first also for a thread that registered before it loaded MLX', async () => {
  const w = words();
  const t = await Thread.start({ mlx: false, words: w });
  await t.value(`core.deathWord(g.data.words, 0, 1, 'ended'); core.deathWord(g.data.words, 1, 1);
    g.load = import(${JSON.stringify(new URL('../../dist/engine-thread/mlx/ops.js', import.meta.url).href)}).then(async (mx) => {
      const native = (await import(${JSON.stringify(new URL('../../dist/engine-thread/mlx/binding.js', import.meta.url).href)})).mlx();
      const s = mx.openEngineStream('cpu');
      mx.asyncEvaluate([native.testDelay(mx.zeros([1], 'float32', s), 400, s)]);
      Atomics.store(g.data.words, 2, 1);
    });`);
  await until(() => Atomics.load(w, 2) === 1);
  void t.worker.terminate();
  await until(() => Atomics.load(w, 1) === 1);
  expect(Atomics.load(w, 0)).toBe(0);
});

test('a cancelled word is not written', async () => {
  const w = words();
  const t = await Thread.start({ mlx: false, words: w });
  await t.value('core.deathWord(g.data.words, 1, 5); core.deathWord(g.data.words, 2, 6); core.cancelDeathWord(g.data.words, 1)');
  await t.worker.terminate();
  await until(() => Atomics.load(w, 2) === 6);
  expect(Atomics.load(w, 1)).toBe(0);
});

test('a word outside the array is refused', async () => {
  const t = await Thread.start({ mlx: false, words: words() });
  for (const call of [
    'core.deathWord(g.data.words, 16, 1)',
    'core.deathWord(g.data.words, -1, 1)',
    'core.deathWord(new Float32Array(4), 0, 1)',
    'core.deathWord()',
  ]) {
    expect((await t.run(call)).error, call).toBeDefined();
  }
});
