/**
 * Sampling through the whole engine: a seed gives the same answer again, another seed another one, and greedy needs none.
 *
 * Must not happen: an answer that depends on what the engine did before, or on what other requests run beside it.
 */
import { describe, expect, test } from 'vitest';
import { cacheIn, GREEDY, openEngine, promptIds, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

const request = { tokens: promptIds(30), ignoreEos: true, maxTokens: 40 };
const hot = { ...request, temperature: 1 };

describe('seeds', () => {
  test('the same seed gives the same answer, in this engine and in another', async () => {
    const [one, two] = [await openEngine(), await openEngine()];
    const first = await one.complete({ ...hot, seed: 42 });
    await one.complete({ ...hot, seed: 7, tokens: promptIds(50, 9) });
    expect((await one.complete({ ...hot, seed: 42 })).tokenIds).toEqual(first.tokenIds);
    expect((await two.complete({ ...hot, seed: 42 })).tokenIds).toEqual(first.tokenIds);
  });

  test('other seeds, and no seed, give other answers', async () => {
    const engine = await openEngine();
    const answers = new Set<string>();
    for (const seed of [1, 2, 3, 2 ** 53 - 1, undefined, undefined]) {
      answers.add((await engine.complete({ ...hot, ...(seed === undefined ? {} : { seed }) })).tokenIds.join());
    }
    expect(answers.size).toBe(6);
  });

  test('a restored prefix does not change what a seed gives', async () => {
    const engine = await openEngine({ cache: cacheIn(tempDir()) });
    const first = await engine.complete({ ...hot, seed: 5 });
    await engine.flush();
    const again = await engine.complete({ ...hot, seed: 5 });
    expect(again.usage.cachedTokens).toBe(29);
    expect(again.tokenIds).toEqual(first.tokenIds);
  });
});

describe('what narrows the choice', () => {
  test('temperature 0, one candidate and a vanishing share of probability all give the greedy answer', async () => {
    const engine = await openEngine();
    const { tokenIds } = await engine.complete({ ...request, ...GREEDY });
    for (const narrow of [
      { temperature: 0, seed: 9 },
      { temperature: 1, topK: 1 },
      { temperature: 1, topP: 1e-9 },
      { temperature: 1, minP: 1 },
    ]) {
      expect((await engine.complete({ ...request, ...narrow })).tokenIds).toEqual(tokenIds);
    }
  });

  test('a repetition penalty makes repeats rarer', async () => {
    const engine = await openEngine();
    const repeats = async (repetitionPenalty: number) => {
      const { tokenIds } = await engine.complete({ ...request, temperature: 0, repetitionPenalty, repetitionContext: 200, maxTokens: 120 });
      return tokenIds.length - new Set(tokenIds).size;
    };
    expect(await repeats(5)).toBeLessThan(await repeats(1));
  });
});
