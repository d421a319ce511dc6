/**
 * The life of engines in one process: death of an engine's thread, close, calls after it, several engines.
 *
 * Must not happen: a call that never settles, a dead engine that harms its successor or its neighbour, a store opened twice.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { createEngine, type Engine, type EngineOptions } from '../../dist/index.js';
import { cacheIn, GREEDY, listen, openEngine, promptIds, readAll, rejection, TINY, until, watchEngines } from '../helpers/engines.ts';
import { dist, TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { evalWorker, nextMessage } from '../helpers/worker.ts';

watchEngines(10);

const request = { tokens: promptIds(100), ...GREEDY, maxTokens: 20 };
const long = { ...request, maxTokens: 3_000 };

/** An engine and its Worker: of the threads that main makes for an engine, its own is the last. */
async function openWithThread(options: Partial<EngineOptions> = {}): Promise<{ engine: Engine; thread: Worker }> {
  const workers: Worker[] = [];
  const onWorker = (worker: Worker): void => void workers.push(worker);
  process.on('worker', onWorker);
  try {
    const engine = await openEngine(options);
    return { engine, thread: workers.at(-1)! };
  } finally {
    process.off('worker', onWorker);
  }
}

describe('death of the engine thread', () => {
  test('every pending call rejects with ENGINE_DIED, whatever it waits for', async () => {
    const { engine, thread } = await openWithThread({ maxUnreadChunks: 2 });
    const heard = listen(engine);
    const generation = engine.generate(long);
    await generation.next();
    const unread = engine.generate(long);
    const calls = [engine.complete(long), engine.prefill(request), generation.result, unread.result];
    const rejections = calls.map(rejection);
    // The only call that a living thread answers in less time than this one may lose between here and the next line.
    const counted = engine.countTokens({ tokens: [3] }).catch((error: { code?: string }) => error.code);
    const reading = rejection(readAll(generation));
    await thread.terminate();
    for (const error of await Promise.all([...rejections, reading])) expect(error).toMatchObject({ name: 'TidemarkError', code: 'ENGINE_DIED' });
    expect([1, 'ENGINE_DIED']).toContain(await counted);
    expect(engine.health().status).toBe('dead');
    expect(heard.degraded.map((event) => event.code)).toEqual(['ENGINE_DIED']);
    expect(engine.stats().requests).toMatchObject({ queued: 0, running: 0 });
  });

  test('later calls reject at once with the same code; close works, and is closed then', async () => {
    const { engine, thread } = await openWithThread({ cache: cacheIn(tempDir()) });
    await thread.terminate();
    await until('main knows', () => engine.health().status === 'dead');
    expect(await rejection(engine.complete(request))).toMatchObject({ code: 'ENGINE_DIED' });
    expect(() => engine.generate(request)).toThrow(expect.objectContaining({ code: 'ENGINE_DIED' }));
    expect(await rejection(engine.countTokens({ prompt: 'a' }))).toMatchObject({ code: 'ENGINE_DIED' });
    expect(await engine.close()).toMatchObject({ lost: 0 });
    expect(engine.health().status).toBe('closed');
    expect(await rejection(engine.complete(request))).toMatchObject({ code: 'ENGINE_CLOSED' });
  });

  test.each(['in prefill', 'in decode', 'idle'])(
    '%s: a new engine on the same folder, made while the dead one is still open, restores what was durable',
    async (when) => {
      const dir = tempDir();
      const { engine, thread } = await openWithThread({ cache: cacheIn(dir), prefillChunk: 16 });
      const heard = listen(engine);
      const tokens = promptIds(1_000);
      const running = rejection(engine.complete({ tokens, ...GREEDY, maxTokens: when === 'idle' ? 1 : 3_000 }).then(() => Promise.reject(new Error('ended'))));
      await until(when, () => (when === 'in prefill' ? heard.progress.length > 30 : engine.stats().tokens.decoded > 0) && heard.durable.length > 5);
      if (when === 'idle') await running;
      await thread.terminate();
      const error = await running;
      if (when !== 'idle') expect(error).toMatchObject({ code: 'ENGINE_DIED' });
      // What the dead engine had handed over is still written.
      await until('nothing is pending', () => engine.stats().boundaries.pending + engine.stats().boundaries.written === 0);
      const durable = Math.max(...heard.durable.map((event) => event.tokenCount));
      const next = await openEngine({ cache: cacheIn(dir) });
      const { usage } = await next.complete({ tokens, ...GREEDY, maxTokens: 1 });
      expect(usage.cachedTokens).toBeGreaterThanOrEqual(Math.min(durable, tokens.length - 1));
      expect(next.health()).toMatchObject({ status: 'ok', persistence: 'on' });
      await next.close();
      await engine.close();
      expect(readdirSync(join(dir, '_boundary_snapshots')).filter((name) => name !== '_promote')).toEqual([]);
    },
  );

  test('a neighbour on the same folder goes on', async () => {
    const dir = tempDir();
    const { engine, thread } = await openWithThread({ cache: cacheIn(dir) });
    const neighbour = await openEngine({ cache: cacheIn(dir) });
    const answer = neighbour.complete({ ...request, maxTokens: 300 });
    void rejection(engine.complete(long));
    await thread.terminate();
    expect((await answer).tokenIds).toHaveLength(300);
    await neighbour.flush();
    expect((await neighbour.complete(request)).usage.cachedTokens).toBe(99);
    expect(neighbour.health()).toMatchObject({ status: 'ok', persistence: 'on' });
  });

  test('while it loads: createEngine rejects, and the next try works', async () => {
    const onWorker = (worker: Worker): void => void worker.terminate();
    process.once('worker', onWorker);
    const error = await rejection(createEngine({ model: TINY, cache: false, threads: 1 }));
    expect(error).toMatchObject({ code: 'ENGINE_DIED' });
    expect((await (await openEngine()).complete(request)).tokenIds).toHaveLength(20);
  });
});

describe('close', () => {
  test('twice gives one report; calls after it are refused by code', async () => {
    const engine = await openEngine({ cache: cacheIn(tempDir()) });
    await engine.complete(request);
    const [first, second] = await Promise.all([engine.close(), engine.close()]);
    expect(second).toEqual(first);
    expect(await engine.close()).toEqual(first);
    const closed = expect.objectContaining({ code: 'ENGINE_CLOSED' });
    expect(() => engine.generate(request)).toThrow(closed);
    for (const call of [engine.complete(request), engine.prefill(request), engine.countTokens({ prompt: 'a' }), engine.flush()]) {
      expect(await rejection(call)).toEqual(closed);
    }
    expect(engine.health().status).toBe('closed');
    expect(engine.stats().requests).toMatchObject({ finished: 1, running: 0 });
    expect(engine.diagnose().cycles).toEqual([]);
  });

  test('rejects what runs and what waits, and what was captured is durable', async () => {
    const dir = tempDir();
    const engine = await openEngine({ cache: cacheIn(dir) });
    const running = engine.generate({ ...long, tokens: promptIds(1_000) });
    await running.next();
    const waiting = rejection(engine.complete(request));
    const report = await engine.close();
    expect(await waiting).toMatchObject({ code: 'ENGINE_CLOSED' });
    expect(await rejection(readAll(running))).toMatchObject({ code: 'ENGINE_CLOSED' });
    expect(report.lost).toBe(0);
    const next = await openEngine({ cache: cacheIn(dir) });
    expect((await next.complete({ tokens: promptIds(1_000), ...GREEDY, maxTokens: 1 })).usage.cachedTokens).toBe(999);
  });

  test('through `await using`', async () => {
    const engine = await openEngine();
    await engine[Symbol.asyncDispose]();
    expect(engine.health().status).toBe('closed');
  });

  test('a folder can be opened again as soon as close has settled, eight times over', async () => {
    const dir = tempDir();
    for (let i = 0; i < 8; i++) {
      const engine = await openEngine({ cache: cacheIn(dir) });
      expect(engine.health().persistence).toBe('on');
      const { usage } = await engine.complete({ ...request, maxTokens: 1 });
      expect(usage.cachedTokens).toBe(i === 0 ? 0 : 99);
      await engine.close();
    }
  });
});

describe('several engines', () => {
  test('on one folder share one store: what one stored the other restores, and the store outlives the first close', async () => {
    const dir = tempDir();
    const [one, two] = await Promise.all([openEngine({ cache: cacheIn(dir) }), openEngine({ cache: cacheIn(dir) })]);
    const heard = [listen(one), listen(two)];
    const first = await one.complete(request);
    await one.flush();
    const second = await two.complete(request);
    expect(second.usage.cachedTokens).toBe(99);
    expect(second.tokenIds).toEqual(first.tokenIds);
    expect(heard[1]!.durable.filter((event) => event.requestId !== second.requestId)).toEqual([]);
    await one.close();
    const third = await two.complete({ ...request, tokens: [...request.tokens, ...promptIds(40, 3)] });
    expect(third.usage.cachedTokens).toBe(99);
    await two.flush();
    expect(two.health().persistence).toBe('on');
    expect(heard.flatMap((h) => h.degraded)).toEqual([]);
    expect(two.stats().boundaries.durable).toBeGreaterThan(0);
  });

  test('with different models share a process and a folder, and never blocks', async () => {
    const dir = tempDir();
    const tokens = promptIds(300);
    const tiny = await openEngine({ cache: cacheIn(dir) });
    const tide = await openEngine({ model: TIDE_5M, cache: cacheIn(dir) });
    const alone = await Promise.all([tiny, tide].map((engine) => engine.complete({ tokens, ...GREEDY, maxTokens: 30 })));
    expect(alone.map((answer) => answer.usage.cachedTokens)).toEqual([0, 0]);
    await Promise.all([tiny.flush(), tide.flush()]);
    const again = await Promise.all([tiny, tide].map((engine) => engine.complete({ tokens, ...GREEDY, maxTokens: 30 })));
    expect(again.map((answer) => answer.usage.cachedTokens)).toEqual([299, 299]);
    expect(again.map((answer) => answer.tokenIds)).toEqual(alone.map((answer) => answer.tokenIds));
    expect(again[0]!.tokenIds).not.toEqual(again[1]!.tokenIds);
  });

  test('with different salts never share blocks', async () => {
    const dir = tempDir();
    const [one, two] = [await openEngine({ cache: cacheIn(dir, { salt: 'a' }) }), await openEngine({ cache: cacheIn(dir, { salt: 'b' }) })];
    await one.complete(request);
    await one.flush();
    expect((await two.complete(request)).usage.cachedTokens).toBe(0);
    expect((await one.complete(request)).usage.cachedTokens).toBe(99);
  });

  test('on folders of their own are independent, also when one is closed', async () => {
    const [one, two] = [await openEngine({ cache: cacheIn(tempDir()) }), await openEngine({ cache: cacheIn(tempDir()) })];
    await one.complete(request);
    await one.close();
    await two.complete(request);
    await two.flush();
    expect((await two.complete(request)).usage.cachedTokens).toBe(99);
  });
});

describe('another thread', () => {
  test('createEngine in a Worker rejects with NOT_MAIN_THREAD', async () => {
    const worker = evalWorker(
      `import(workerData.module)
        .then(({ createEngine }) => createEngine({ model: workerData.model, cache: false }))
        .then(() => parentPort.postMessage({ ok: true }), (error) => parentPort.postMessage({ name: error.name, code: error.code, message: error.message }));`,
      { module: dist('index'), model: TINY },
    );
    expect(await nextMessage(worker)).toMatchObject({ name: 'TidemarkError', code: 'NOT_MAIN_THREAD' });
  });
});
