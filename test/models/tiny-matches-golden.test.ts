// Golden outputs of the reference implementation on random weights, which amplify every error: whole, in chunks, in both types.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { FAMILIES, familyDir, NEAR_TIES } from '../helpers/families.ts';
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

describe.each(Object.keys(FAMILIES))('%s', (family) => {
  const dir = familyDir(family);
  const golden = JSON.parse(readFileSync(join(dir, 'golden.json'), 'utf8')) as Golden;
  const prompts = golden.prompts.map(({ ids }) => ids);

  describe.each(['float32', 'stored'] as const)('%s', (kind) => {
    test.each([undefined, 16, 64])('chunks of %s', async (chunk) => {
      const compute = kind === 'float32' ? 'float32' : 'model';
      const answers = await scenario<Answer[]>('reference-scenarios.mjs', 'answers', { dir, compute, prompts, chunk, tokens: 32 });
      const tolerance = golden.tolerance[kind];
      answers.forEach((answer, i) => {
        const expected = golden.prompts[i]![kind];
        expect.soft(difference(answer.head, expected.head), `prompt ${i}`).toBeLessThanOrEqual(tolerance);
        expect.soft(Math.abs(answer.logsumexp - expected.logsumexp), `prompt ${i}`).toBeLessThanOrEqual(tolerance);
        if (expected.gap > 2 * tolerance) expect.soft(answer.argmax).toBe(expected.argmax);
        const sure = NEAR_TIES[family]?.[i] ?? (kind === 'float32' ? expected.greedy.tokens.length : expected.greedy.sure);
        expect.soft(answer.greedy.slice(0, sure), `prompt ${i}`).toEqual(expected.greedy.tokens.slice(0, sure));
      });
    });
  });
});
