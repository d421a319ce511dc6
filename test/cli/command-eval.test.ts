/**
 * `tidemark eval` against the reference that came with the demo model. What must not happen: a number that another
 * implementation would not give.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { watchLeaks } from '../helpers/leaks.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { tidemark } from './command.ts';

watchLeaks();

interface Reference {
  prompt: string;
  ids: number[];
  greedy: number[];
  logits_head: number[];
  logsumexp: number;
  argmax: number;
}
interface Entry extends Omit<Reference, 'prompt' | 'ids'> {
  cachedTokens: number;
  missReason: string | null;
}

const references = JSON.parse(readFileSync(join(TIDE_5M, 'reference.json'), 'utf8')) as Reference[];
const TOLERANCE = 2e-4;

async function evaluate(...args: string[]): Promise<Entry[]> {
  const tokens = join(tempDir(), 'tokens.json');
  writeFileSync(tokens, JSON.stringify(references.map(({ ids }) => ({ ids }))));
  const { code, stdout, stderr } = await tidemark(['eval', '--model', TIDE_5M, '--tokens', tokens, '--dtype', 'float32', '--threads', '1', '--json', ...args]);
  expect([code, stderr]).toEqual([0, '']);
  return JSON.parse(stdout) as Entry[];
}

function expectReference(entries: Entry[]): void {
  expect(entries).toHaveLength(references.length);
  for (const [i, { argmax, logsumexp, logits_head, prompt }] of references.entries()) {
    const entry = entries[i]!;
    expect(entry.argmax, prompt).toBe(argmax);
    expect(Math.abs(entry.logsumexp - logsumexp), prompt).toBeLessThan(TOLERANCE);
    for (const [j, logit] of logits_head.entries()) expect(Math.abs(entry.logits_head[j]! - logit), `${prompt} [${j}]`).toBeLessThan(TOLERANCE);
  }
}

describe('the eight prompts of reference.json in float32', () => {
  test('argmax, log-sum-exp, logits and all 64 greedy tokens', async () => {
    const entries = await evaluate('--greedy', '64');
    expectReference(entries);
    expect(entries.map(({ greedy }) => greedy)).toEqual(references.map(({ greedy }) => greedy));
    expect(entries.map(({ cachedTokens, missReason }) => [cachedTokens, missReason])).toEqual(references.map(() => [0, 'off']));
  });

  test('in chunks, and from a cache', async () => {
    const cache = join(tempDir(), 'cache');
    expectReference(await evaluate('--chunk', '3', '--cache', cache));
    const warm = await evaluate('--cache', cache);
    expectReference(warm);
    expect(warm.map(({ cachedTokens }) => cachedTokens)).toEqual(references.map(({ ids }) => ids.length - 1));
  });
});
