/**
 * Every operation of the engine thread is bound to the engine's own stream, over whole requests: prefill, decode, capture,
 * restore, forks, abort, several sequences, clears of the allocator's cache.
 *
 * Must not happen: one operation on another stream (the thread's default included).
 */
import { describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import { cacheIn, GREEDY, openEngine, promptIds, rejection, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

describe.each([
  { name: 'tiny', model: undefined, compute: 'float32' },
  { name: 'tide-5m', model: TIDE_5M, compute: 'float32' },
  { name: 'tide-5m', model: TIDE_5M, compute: 'model' },
] as const)('$name in $compute', ({ model, compute }) => {
  test('[J105] stays at 0', async () => {
    const engine = await openEngine({
      ...(model === undefined ? {} : { model }),
      compute,
      maxNumSeqs: 2,
      prefillChunk: 48,
      cache: cacheIn(tempDir(), { blockSize: 64 }),
    });
    const request = { tokens: promptIds(200), ignoreEos: true, maxTokens: 70 };
    await Promise.all([
      engine.complete({ ...request, ...GREEDY }),
      engine.complete({ ...request, temperature: 1, topK: 20, topP: 0.9, minP: 0.01, seed: 3, repetitionPenalty: 1.1 }),
    ]);
    await engine.flush();
    expect((await engine.complete({ ...request, ...GREEDY })).usage.cachedTokens).toBe(199);
    await engine.prefill({ tokens: promptIds(300, 4) });
    await evaluateTokens(engine, { ids: promptIds(130, 5), chunk: 64, greedy: 5, full: true, forks: true });
    const abort = new AbortController();
    const aborted = engine.generate({ ...request, tokens: promptIds(150, 6), signal: abort.signal });
    await aborted.next();
    abort.abort();
    await rejection(aborted.result);
    // Eight steps after a request has ended the allocator's cache is given back.
    await engine.complete({ ...request, ...GREEDY, maxTokens: 20 });
    expect(engine.stats().streams.clears).toBeGreaterThan(0);
    expect(engine.stats().streams).toMatchObject({ foreignOps: 0, clearsSkipped: 0 });
  });
});
