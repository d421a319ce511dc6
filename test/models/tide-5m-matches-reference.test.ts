// The demo model must give the reference's tokens and logits: eight prompts, float32, 64 greedy tokens each.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { TIDE_5M } from '../helpers/paths.ts';
import { difference, scenario } from './scenario.ts';

interface Reference {
  prompt: string;
  ids: number[];
  greedy: number[];
  logits_head: number[];
  logsumexp: number;
  argmax: number;
}
interface Answer {
  argmax: number;
  logsumexp: number;
  head: number[];
  greedy: number[];
  offsets: number[];
}

const reference = JSON.parse(readFileSync(join(TIDE_5M, 'reference.json'), 'utf8')) as Reference[];
const prompts = reference.map(({ ids }) => ids);
const TOLERANCE = 2e-4;

test.each([undefined, 3])('eight prompts, chunks of %s', async (chunk) => {
  const answers = await scenario<Answer[]>('reference-scenarios.mjs', 'answers', { dir: TIDE_5M, compute: 'float32', prompts, chunk, tokens: 64 });
  answers.forEach((answer, i) => {
    const expected = reference[i]!;
    expect(answer.argmax, expected.prompt).toBe(expected.argmax);
    expect(Math.abs(answer.logsumexp - expected.logsumexp)).toBeLessThan(TOLERANCE);
    expect(difference(answer.head, expected.logits_head)).toBeLessThan(TOLERANCE);
    expect(answer.greedy, expected.prompt).toEqual(expected.greedy);
    expect(new Set(answer.offsets)).toEqual(new Set([expected.ids.length + 64]));
  });
});

test('what the model says about itself', async () => {
  const { info, warnings, caches } = await scenario<{ info: object; warnings: string[]; caches: string[] }>('reference-scenarios.mjs', 'describe', {
    dir: TIDE_5M,
    compute: 'float32',
  });
  expect(info).toMatchObject({ modelType: 'qwen3_5', vocabSize: 4096, maxContext: 32768, layers: 8, hiddenSize: 192, dtype: 'float32' });
  expect(warnings).toEqual([]);
  expect(caches).toEqual(['ArraysCache', 'ArraysCache', 'ArraysCache', 'KVCache', 'ArraysCache', 'ArraysCache', 'ArraysCache', 'KVCache']);
});
