// Rows of different lengths must decode together as they do alone, in every family: rings at different places, chunks that end at
// different columns, recurrent state side by side; while one row leaves and one joins.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { FAMILIES, familyDir } from '../helpers/families.ts';
import { scenario } from './scenario.ts';

const FILE = 'cache-scenarios.mjs';
const ids = Array.from({ length: 150 }, (_, i) => (i * 71 + 13) % 320);

describe.each(Object.keys(FAMILIES))('%s', (family) => {
  const dir = familyDir(family);
  const { tolerance } = JSON.parse(readFileSync(join(dir, 'golden.json'), 'utf8')) as { tolerance: { float32: number } };

  test('keeps what is expected of each layer', async () => {
    const { caches } = await scenario<{ caches: string[] }>('reference-scenarios.mjs', 'describe', { dir, compute: 'model' });
    expect(caches).toEqual(FAMILIES[family]);
  });

  test('one token a step', async () => {
    // Shorter than a window, longer, just full, and one that fills up on the way.
    const prompts = [ids.slice(0, 40), ids.slice(3, 10), ids.slice(0, 150), ids.slice(20, 21), ids.slice(50, 82), ids.slice(60, 85)];
    const { alone, batched } = await scenario<{ alone: number[][]; batched: number[][] }>(FILE, 'raggedBatch', { dir, prompts, steps: 12 });
    batched.forEach((tokens, row) => {
      expect(tokens, `row ${row}`).toEqual(alone[row]!.slice(0, tokens.length));
    });
  });

  test('several tokens a step', async () => {
    const prompts = [ids.slice(0, 40), ids.slice(3, 10), ids.slice(20, 21), ids.slice(40, 72)];
    const next = [ids.slice(60, 65), ids.slice(70, 75), ids.slice(80, 85), ids.slice(90, 95)];
    const differences = await scenario<number[]>(FILE, 'severalTokensPerRow', { dir, prompts, next });
    expect(Math.max(...differences)).toBeLessThan(tolerance.float32);
  });
});
