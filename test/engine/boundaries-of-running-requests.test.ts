/**
 * Where boundaries are captured while a request runs, under which request, and what they add up to on disk.
 * Must not happen: a boundary that waits for a place in the batch, one at a token count that nobody resumes at, files that
 * grow faster than the prompt.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cacheIn, GREEDY, listen, openEngine, promptIds, watchEngines } from '../helpers/engines.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchEngines();

const sorted = (counts: number[]) => counts.toSorted((a, b) => a - b);

describe('boundaries of running requests', () => {
  test('[B35] prefill is captured under its request while another one decodes; only block ends, prompt and answer ends are stored', async () => {
    // Chunks of 10 end at no block boundary of 16 by themselves.
    const engine = await openEngine({ maxNumSeqs: 2, prefillChunk: 10, cache: cacheIn(tempDir()) });
    const heard = listen(engine);
    const first = engine.complete({ tokens: promptIds(20, 1), requestId: 'first', ...GREEDY, maxTokens: 40 });
    const second = engine.complete({ tokens: promptIds(57, 2), requestId: 'second', ...GREEDY, maxTokens: 2 });
    await Promise.all([first, second]);
    await engine.flush();
    const of = (id: string) => sorted(heard.durable.filter(({ requestId }) => requestId === id).map(({ tokenCount }) => tokenCount));
    // Blocks, the prompt's last token but one, and where each answer ended (its last token was never computed).
    expect(of('second')).toEqual([16, 32, 48, 56, 58]);
    expect(of('first')).toEqual([16, 19, 32, 48, 59]);
    expect(engine.stats().boundaries).toMatchObject({ captured: 10, durable: 10, dropped: {} });
  });

  test('[B29] the state and key-value files of 40 boundaries of a real model grow linearly with tokens', async () => {
    const sizes: number[] = [];
    for (const blocks of [10, 20, 40]) {
      const dir = tempDir();
      const engine = await openEngine({ cache: cacheIn(dir) });
      await engine.prefill({ tokens: promptIds(16 * blocks) });
      await engine.flush();
      await engine.close();
      const files = listTree(dir).filter((path) => path.endsWith('.safetensors'));
      // The full blocks, and the prompt's last token but one; both parts of each.
      expect(files).toHaveLength(2 * (blocks + 1));
      sizes.push(files.reduce((sum, path) => sum + statSync(join(dir, path)).size, 0));
    }
    const [ten, twenty, forty] = sizes as [number, number, number];
    // One boundary more than there are blocks: the differences are exactly proportional, but for digits in headers.
    expect((forty - twenty) / (twenty - ten)).toBeCloseTo(2, 2);
  });
});
