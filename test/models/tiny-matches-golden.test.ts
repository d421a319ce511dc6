// Golden outputs of the reference implementation on random weights, which amplify every error: whole, in chunks, in both types.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ROOT } from '../helpers/paths.ts';
import { difference, scenario } from './scenario.ts';

interface Figures {
  head: number[];
  argmax: number;
  logsumexp: number;
  gap: number;
  l2: number;
  greedy: { tokens: number[]; sure: number };
}
interface Golden {
  tolerance: { stored: number; float32: number };
  prompts: { ids: number[]; stored: Figures; float32: Figures }[];
}
type Answer = Omit<Figures, 'greedy' | 'gap'> & { greedy: number[] };

const TINY = join(ROOT, 'test/fixtures/models/tiny-qwen3_5');
const golden = JSON.parse(readFileSync(join(TINY, 'golden.json'), 'utf8')) as Golden;
const prompts = golden.prompts.map(({ ids }) => ids);

describe.each(['float32', 'stored'] as const)('%s', (kind) => {
  test.each([undefined, 16, 64])('chunks of %s', async (chunk) => {
    const compute = kind === 'float32' ? 'float32' : 'model';
    const answers = await scenario<Answer[]>('reference-scenarios.mjs', 'answers', { dir: TINY, compute, prompts, chunk, tokens: 32 });
    const tolerance = golden.tolerance[kind];
    answers.forEach((answer, i) => {
      const expected = golden.prompts[i]![kind];
      expect(difference(answer.head, expected.head)).toBeLessThanOrEqual(tolerance);
      expect(Math.abs(answer.logsumexp - expected.logsumexp)).toBeLessThanOrEqual(tolerance);
      if (expected.gap > 2 * tolerance) expect(answer.argmax).toBe(expected.argmax);
      const sure = kind === 'float32' ? expected.greedy.tokens.length : expected.greedy.sure;
      expect(answer.greedy.slice(0, sure)).toEqual(expected.greedy.tokens.slice(0, sure));
    });
  });
});
