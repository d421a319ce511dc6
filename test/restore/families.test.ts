/**
 * Every family, restored = forked: prompts of 1 to 700 tokens with blocks and chunks drawn at random. In the short form a few
 * of them, by the seed; TIDEMARK_SEED repeats a run, TIDEMARK_LONG=1 takes many.
 *
 * Must not happen: a family whose state comes back in another layout, at another token, or not at all.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { watchEngines } from '../helpers/engines.ts';
import { FAMILIES, familyDir } from '../helpers/families.ts';
import { LIMIT_MS, LONG, restoredEqualsForked } from './harness.ts';

watchEngines(LONG ? 2000 : 20);

const SEED = Number(process.env.TIDEMARK_SEED ?? Math.floor(Math.random() * 2 ** 31));
const DRAWN = LONG ? 8 : 1;

/** Whole numbers from 0 to below `bound`, the same for the same seed. */
function numbers(seed: number): (bound: number) => number {
  let state = seed >>> 0;
  return (bound) => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) >>> 0;
    return (state >>> 8) % bound;
  };
}

function drawn(family: string) {
  const next = numbers(SEED + [...family].reduce((sum, letter) => sum * 31 + letter.charCodeAt(0), 7));
  return Array.from({ length: DRAWN }, () => {
    const blockSize = [16, 32, 48, 64, 256][next(5)]!;
    return { blockSize, chunk: 1 + next(300), length: 1 + next(LONG ? 700 : Math.min(700, 10 * blockSize)), greedy: next(40) };
  });
}

/**
 * How far runs in other chunks may differ where a family rounds what it caches to 8 bits: a value between two of them may become
 * either, as the order of sums has it. Restored runs are compared with their forks bit for bit all the same.
 */
const ROUNDED: Readonly<Record<string, number>> = { deepseek_v41: 2e-2 };

describe.each(Object.keys(FAMILIES))('%s', (family) => {
  const model = familyDir(family);
  const { tolerance } = JSON.parse(readFileSync(join(model, 'golden.json'), 'utf8')) as { tolerance: { float32: number } };
  const common = { model, vocabulary: 320, tolerance: ROUNDED[family] ?? tolerance.float32 };

  // One token and an answer longer than a window; a prompt that ends just behind one.
  test.each([
    { blockSize: 16, chunk: 512, length: 1, greedy: 40 },
    { blockSize: 16, chunk: 24, length: 33, greedy: 36 },
  ])('blocks of $blockSize, chunks of $chunk, $length tokens and $greedy more', (shape) => restoredEqualsForked({ ...common, ...shape }), LIMIT_MS);

  // In the short form of every third family.
  const index = Object.keys(FAMILIES).indexOf(family);
  test.each(LONG || (index + SEED) % 3 === 0 ? drawn(family) : [])(
    `seed ${SEED}: blocks of $blockSize, chunks of $chunk, $length tokens and $greedy more`,
    async (shape) => {
      const points = await restoredEqualsForked({ ...common, ...shape });
      expect(points.length).toBeGreaterThan(shape.length + shape.greedy > 1 ? 0 : -1);
    },
    LIMIT_MS,
  );
});
