/**
 * Abort in every state: before, queued, restoring, in prefill, in decode, by leaving the loop, by time.
 *
 * Must not happen: a caller that waits for the engine to notice, a reason that is not the signal's, a slot or bytes that stay
 * taken, progress up to the last boundary lost.
 */
import { describe, expect, test } from 'vitest';
import type { Engine, RequestOptions } from '../../dist/index.js';
import { cacheIn, GREEDY, listen, openEngine, promptIds, readAll, rejection, until, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchEngines();

const reason = new Error('the user changed their mind');
const short: RequestOptions = { tokens: promptIds(20), ...GREEDY, maxTokens: 5 };
const long: RequestOptions = { tokens: promptIds(20), ...GREEDY, maxTokens: 3_500 };

/** Nothing is taken any more, and the engine answers as if nothing had been. */
async function asNew(engine: Engine, aborted: number): Promise<void> {
  await until('every slot is free', () => engine.stats().requests.queued + engine.stats().requests.running === 0);
  expect(engine.stats().requests).toMatchObject({ aborted, failed: 0 });
  expect((await engine.complete(short)).tokenIds).toHaveLength(5);
}

describe('by its signal', () => {
  test('aborted before: nothing is submitted, in each of the three calls', async () => {
    const engine = await openEngine();
    const signal = AbortSignal.abort(reason);
    expect(await rejection(engine.complete({ ...short, signal }))).toBe(reason);
    expect(await rejection(engine.prefill({ ...short, signal }))).toBe(reason);
    const generation = engine.generate({ ...short, signal });
    expect(await rejection(generation.next())).toBe(reason);
    expect(await rejection(generation.result)).toBe(reason);
    expect(engine.stats().tokens.prompt).toBe(0);
    await asNew(engine, 0);
  });

  test('while queued behind a long answer: rejects at once, the long one goes on', async () => {
    const engine = await openEngine();
    const running = engine.generate(long);
    await running.next();
    const abort = new AbortController();
    const queued = engine.complete({ ...short, signal: abort.signal });
    await until('it is queued', () => engine.stats().requests.queued === 1);
    abort.abort(reason);
    expect(await rejection(queued)).toBe(reason);
    await until('its slot is free', () => engine.stats().requests.queued === 0);
    expect(engine.stats().requests.running).toBe(1);
    await running.return!();
    await asNew(engine, 2);
  });

  test('in prefill: the rest of the prompt is not computed', async () => {
    const engine = await openEngine({ prefillChunk: 16 });
    const abort = new AbortController();
    const prefilled = engine.complete({ tokens: promptIds(3_000), ...GREEDY, signal: abort.signal });
    engine.on('progress', ({ tokens }) => {
      if (tokens >= 64) abort.abort(reason);
    });
    expect(await rejection(prefilled)).toBe(reason);
    await until('its slot is free', () => engine.stats().requests.running === 0);
    expect(engine.stats().tokens.prefilled).toBeLessThan(3_000);
    expect(engine.stats().tokens.decoded).toBe(0);
    await asNew(engine, 1);
  });

  test('in decode: the loop rejects with the reason, result too, and no chunk comes after it', async () => {
    const engine = await openEngine();
    const abort = new AbortController();
    const generation = engine.generate({ ...long, signal: abort.signal });
    const seen: number[] = [];
    const loop = (async () => {
      for await (const chunk of generation) {
        seen.push(chunk.index);
        if (chunk.index === 5) abort.abort(reason);
      }
    })();
    expect(await rejection(loop)).toBe(reason);
    expect(seen).toEqual([0, 1, 2, 3, 4, 5]);
    expect(await rejection(generation.result)).toBe(reason);
    expect(await generation.next()).toEqual({ done: true, value: undefined });
    await asNew(engine, 1);
  });

  test('without a reason it is the platform AbortError', async () => {
    const engine = await openEngine();
    const abort = new AbortController();
    const generation = engine.generate({ ...long, signal: abort.signal });
    await generation.next();
    abort.abort();
    expect(await rejection(generation.result)).toBe(abort.signal.reason);
    expect((await rejection(generation.result)).name).toBe('AbortError');
  });

  test('while it waits for its reader: the sleeping engine notices', async () => {
    const engine = await openEngine({ maxUnreadChunks: 2 });
    const abort = new AbortController();
    const generation = engine.generate({ ...long, signal: abort.signal });
    await until('it stands still', () => engine.stats().tokens.decoded >= 2);
    abort.abort(reason);
    expect(await rejection(generation.next())).toBe(reason);
    await asNew(engine, 1);
  });

  test('after the end it changes nothing, and one signal may serve many requests', async () => {
    const engine = await openEngine();
    const abort = new AbortController();
    const done = await engine.complete({ ...short, signal: abort.signal });
    const [one, two] = [engine.complete({ ...long, signal: abort.signal }), engine.complete({ ...long, signal: abort.signal })];
    abort.abort(reason);
    expect(await rejection(one)).toBe(reason);
    expect(await rejection(two)).toBe(reason);
    expect(done.finishReason).toBe('length');
    await asNew(engine, 2);
  });

  test('at every moment of a short answer: two hundred requests, each aborted a little later', async () => {
    const engine = await openEngine({ maxNumSeqs: 2, cache: cacheIn(tempDir()) });
    const all: Promise<unknown>[] = [];
    for (let i = 0; i < 200; i++) {
      const abort = new AbortController();
      all.push(rejectionOrEnd(engine.complete({ tokens: promptIds(40, i % 7), ...GREEDY, maxTokens: 30, signal: abort.signal })));
      if (i % 4 === 0) await new Promise((resolve) => setImmediate(resolve));
      setTimeout(() => abort.abort(reason), i % 23);
      if (all.length >= 50) await Promise.all(all.splice(0));
    }
    await Promise.all(all);
    await until('every slot is free', () => engine.stats().requests.queued + engine.stats().requests.running === 0);
    expect(engine.stats().requests.failed).toBe(0);
    await engine.flush();
    await until('every byte is given back', () => engine.stats().store.pendingBytes === 0);
    expect((await engine.complete(short)).tokenIds).toHaveLength(5);
  });
});

async function rejectionOrEnd(promise: Promise<unknown>): Promise<void> {
  try {
    await promise;
  } catch (error) {
    if (error !== reason) throw error;
  }
}

describe('while restoring', () => {
  test('rejects, the region is given back, and the next restore works', async () => {
    const engine = await openEngine({ model: TIDE_5M, cache: cacheIn(tempDir(), { blockSize: 256 }) });
    const tokens = promptIds(4_000);
    await engine.prefill({ tokens });
    await engine.flush();
    let caught = 0;
    for (let i = 0; i < 12; i++) {
      const abort = new AbortController();
      const restored = engine.complete({ tokens, ...GREEDY, maxTokens: 2, signal: abort.signal });
      // From "not even begun" to "nearly over".
      setTimeout(() => abort.abort(reason), i * 2);
      if (
        await restored.then(
          () => false,
          (error) => error === reason,
        )
      )
        caught++;
    }
    expect(caught).toBeGreaterThan(0);
    const whole = await engine.complete({ tokens, ...GREEDY, maxTokens: 2 });
    expect(whole.usage.cachedTokens).toBe(3_999);
    expect(whole.missReason).toBeNull();
  });
});

describe('by leaving the loop', () => {
  test('break aborts the request', async () => {
    const engine = await openEngine();
    const generation = engine.generate(long);
    for await (const chunk of generation) if (chunk.index === 3) break;
    expect(await rejection(generation.result)).toMatchObject({ name: 'AbortError' });
    await asNew(engine, 1);
  });

  test('return() before the first chunk, and twice', async () => {
    const engine = await openEngine();
    const generation = engine.generate(long);
    expect(await generation.return!()).toEqual({ done: true, value: undefined });
    expect(await generation.return!()).toEqual({ done: true, value: undefined });
    expect(await generation.next()).toEqual({ done: true, value: undefined });
    await asNew(engine, 1);
  });

  test('return() after the end keeps the result', async () => {
    const engine = await openEngine();
    const generation = engine.generate(short);
    await readAll(generation);
    await generation.return!();
    expect((await generation.result).tokenIds).toHaveLength(5);
    await asNew(engine, 0);
  });
});

describe('by time', () => {
  test('timeoutMs passes: REQUEST_TIMEOUT', async () => {
    const engine = await openEngine();
    const error = await rejection(engine.complete({ ...long, timeoutMs: 60 }));
    expect(error).toMatchObject({ name: 'TidemarkError', code: 'REQUEST_TIMEOUT' });
    expect(error.message).toContain('timeoutMs');
    await asNew(engine, 1);
  });

  test('a request that ends in time is not touched', async () => {
    const engine = await openEngine();
    expect((await engine.complete({ ...short, timeoutMs: 60_000 })).tokenIds).toHaveLength(5);
  });
});

describe('what was computed', () => {
  test('stays on disk up to the last boundary, and no temporary file is left', async () => {
    const dir = tempDir();
    const engine = await openEngine({ prefillChunk: 16, cache: cacheIn(dir) });
    const heard = listen(engine);
    const tokens = promptIds(2_000);
    const abort = new AbortController();
    engine.on('progress', (progress) => {
      if (progress.tokens >= 320) abort.abort(reason);
    });
    expect(await rejection(engine.complete({ tokens, ...GREEDY, signal: abort.signal }))).toBe(reason);
    await until('its slot is free', () => engine.stats().requests.running === 0);
    await engine.flush();
    const computed = engine.stats().tokens.prefilled;
    expect(computed).toBeLessThan(2_000);
    expect(Math.max(...heard.durable.map((event) => event.tokenCount))).toBe(computed);
    const again = await engine.complete({ tokens, ...GREEDY, maxTokens: 1 });
    expect(again.usage.cachedTokens).toBe(computed);
    await engine.close();
    expect(listTree(dir).filter((path) => /tmp|_boundary_snapshots\/[^/]+\/./.test(path) && !path.includes('_promote'))).toEqual([]);
  });
});
