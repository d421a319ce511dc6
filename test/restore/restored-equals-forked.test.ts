/**
 * Restored = forked (design section 6): at each restore point the live caches of the run that wrote it are cloned in
 * memory and continued by the steps that a restored run takes. A second engine on the same folder, limited to that
 * point, must give the same logits and the same state, bit for bit, and must have computed nothing before the point.
 *
 * Must not happen: a restore that computes more than it says, gives other bits than the fork, or does not take place at all.
 */
import { describe, expect, test } from 'vitest';
import { TINY, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { LIMIT_MS, LONG, restoredEqualsForked } from './harness.ts';

// In the long form each restore point has an engine of its own.
watchEngines(LONG ? 100 : 6);

const tide = { model: TIDE_5M, vocabulary: 4_096 };
const tiny = { model: TINY, vocabulary: 320 };

describe('tide-5m, blocks of 256, chunks of 512', () => {
  test.each([1, 255, 256, 257, 511, 1_000, 3_000])(
    'prompt of %i tokens',
    async (length) => {
      await restoredEqualsForked({ ...tide, blockSize: 256, chunk: 512, length, greedy: 0 });
    },
    LIMIT_MS,
  );
});

describe('other blocks and chunks', () => {
  test.each([
    { ...tide, name: 'tide-5m', blockSize: 64, chunk: 512, length: 300 },
    { ...tide, name: 'tide-5m', blockSize: 256, chunk: 100, length: 600 },
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 512, length: 100 },
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 7, length: 50 },
    { ...tiny, name: 'tiny', blockSize: 64, chunk: 48, length: 257 },
    { ...tiny, name: 'tiny', blockSize: 256, chunk: 512, length: 1_000 },
  ])(
    '$name, blocks of $blockSize, chunks of $chunk, prompt of $length tokens',
    async ({ name: _, ...scenario }) => {
      await restoredEqualsForked({ ...scenario, greedy: 0 });
    },
    LIMIT_MS,
  );
});

describe('points in the answer', () => {
  test.each([
    { ...tide, name: 'tide-5m', blockSize: 64, chunk: 512, length: 100, greedy: 100 },
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 32, length: 20, greedy: 70 },
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 512, length: 1, greedy: 40 },
    // Answers that end exactly at a block end, one before and one behind it; prompts that do.
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 32, length: 32, greedy: 32 },
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 32, length: 33, greedy: 32 },
    { ...tiny, name: 'tiny', blockSize: 16, chunk: 32, length: 31, greedy: 32 },
  ])(
    '$name, blocks of $blockSize, $length tokens and $greedy more',
    async ({ name: _, ...scenario }) => {
      const points = await restoredEqualsForked(scenario);
      expect(points.some((point) => point > scenario.length)).toBe(true);
    },
    LIMIT_MS,
  );

  test.each([40, 33, 32, 2])("persist 'finish', prompt of %i tokens: its end and that of the answer are there, when the request has ended", async (length) => {
    const points = await restoredEqualsForked({ ...tiny, blockSize: 16, chunk: 32, length, greedy: 50, persist: 'finish' });
    expect(points).toEqual([length - 1, length + 49]);
  });
});

describe('this suite', () => {
  test('fails for a build in which every restore misses', async () => {
    const scenario = { ...tiny, blockSize: 16, chunk: 32, length: 40, greedy: 10 };
    await restoredEqualsForked(scenario);
    await expect(restoredEqualsForked({ ...scenario, limitFor: () => 0 })).rejects.toThrow(/cachedTokens: expected \+?0 to be 16/);
    // And for one that restores, but always less than it could.
    await expect(restoredEqualsForked({ ...scenario, limitFor: (point) => point - 1 })).rejects.toThrow(/cachedTokens/);
  });
});
