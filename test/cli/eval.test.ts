/**
 * `tidemark eval` around the engine. What must not happen: output that is no single JSON array, or a cache that was not
 * asked for.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { EvaluateRequest, Evaluation } from '../../src/cli/verb.ts';
import { tempDir } from '../helpers/temp.ts';
import { cli } from './harness.ts';

const evaluation: Evaluation = { argmax: 7, logsumexp: 1.5, logitsHead: [0.5, 1], greedy: [7, 8], cachedTokens: 3, missReason: null };

function tokensFile(content: unknown): string {
  const path = join(tempDir(), 'tokens.json');
  writeFileSync(path, JSON.stringify(content));
  return path;
}

async function evaluate(...args: string[]) {
  const requests: EvaluateRequest[] = [];
  const run = await cli(['eval', '--model', 'm', '--tokens', tokensFile([{ ids: [1, 2] }, { ids: [3] }]), ...args], {
    script: {
      onCreate: (options) => options.onProgress?.({ phase: 'weights', bytes: 1, totalBytes: 2 }),
      evaluate: (request) => {
        requests.push(request);
        return evaluation;
      },
    },
  });
  return { ...run, requests };
}

test('--json prints one array with an entry for each sequence, and nothing else', async () => {
  const { code, stdout, requests, engineOptions } = await evaluate('--json', '--greedy', '2', '--chunk', '5', '--dtype', 'float32', '--cache', 'dir');
  expect(code).toBe(0);
  const entry = { argmax: 7, logsumexp: 1.5, logits_head: [0.5, 1], greedy: [7, 8], cachedTokens: 3, missReason: null };
  expect(JSON.parse(stdout)).toEqual([entry, entry]);
  expect(requests).toEqual([
    { ids: [1, 2], greedy: 2, chunk: 5 },
    { ids: [3], greedy: 2, chunk: 5 },
  ]);
  expect(engineOptions).toMatchObject({ model: 'm', compute: 'float32', cache: { dir: 'dir' } });
});

test('without --cache there is no cache at all, without --greedy no greedy tokens', async () => {
  const { stdout, requests, engineOptions } = await evaluate('--json');
  expect(engineOptions!.cache).toBe(false);
  expect(requests[0]).toEqual({ ids: [1, 2], greedy: 0 });
  expect(JSON.parse(stdout)[0]).not.toHaveProperty('greedy');
});

test('without --json: a table', async () => {
  const { stdout } = await evaluate();
  expect(stdout).toMatch(/^# {2}tokens {2}argmax {2}logsumexp {2}cached {2}miss\n0 +2 +7 +1\.50000 +3 {2}-\n/);
});

test.each([{}, [{}], [{ ids: [] }], [{ ids: [-1] }], [{ ids: [1.5] }], ['x']])('a tokens file with %j is refused', async (content) => {
  const { code, stderr } = await cli(['eval', '--model', 'm', '--tokens', tokensFile(content)]);
  expect(code).toBe(2);
  expect(stderr).toMatch(/--tokens: /);
});
