/**
 * Loading, as an app sees it: progress, the model's description, what the folder need not have.
 *
 * Must not happen: progress that goes back or past its end, an engine that is there before its weights are.
 */
import { cpSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { LoadProgress } from '../../dist/index.js';
import { GREEDY, openEngine, promptIds, rejection, TINY, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

describe('progress', () => {
  test('rises to the size of the weights, then says ready, before createEngine settles', async () => {
    const seen: LoadProgress[] = [];
    await openEngine({ model: TIDE_5M, onProgress: (progress) => void seen.push(progress) });
    const weights = seen.filter((progress) => progress.phase === 'weights');
    expect(weights.length).toBeGreaterThan(1);
    for (const [i, { bytes, totalBytes }] of weights.entries()) {
      expect(bytes).toBeLessThanOrEqual(totalBytes);
      expect(bytes).toBeGreaterThanOrEqual(weights[i - 1]?.bytes ?? 0);
    }
    expect(weights.at(-1)!.bytes).toBe(weights.at(-1)!.totalBytes);
    expect(seen.at(-1)!.phase).toBe('ready');
  });
});

describe('the model', () => {
  test('is described', async () => {
    const [tiny, again, tide] = [await openEngine(), await openEngine(), await openEngine({ model: TIDE_5M })];
    expect(tiny.model).toMatchObject({ type: 'qwen3_5', layers: 4, vocabSize: 320, maxContext: 4_096 });
    expect(tide.model).toMatchObject({ type: 'qwen3_5', layers: 8, vocabSize: 4_096, maxContext: 32_768 });
    expect(tiny.model.fingerprint).toMatch(/^[0-9a-f]{64}$/);
    expect(again.model.fingerprint).toBe(tiny.model.fingerprint);
    expect(tide.model.fingerprint).not.toBe(tiny.model.fingerprint);
    expect(tiny.cacheDir).toBeNull();
  });

  test('may lie anywhere: its fingerprint is that of its contents', async () => {
    const copy = join(tempDir(), 'elsewhere');
    cpSync(TINY, copy, { recursive: true });
    const [here, there] = [await openEngine(), await openEngine({ model: copy })];
    expect(there.model.fingerprint).toBe(here.model.fingerprint);
  });

  test('without a chat template answers prompts and tokens, and says what to do about messages', async () => {
    const copy = join(tempDir(), 'plain');
    cpSync(TINY, copy, { recursive: true });
    rmSync(join(copy, 'tokenizer_config.json'));
    const engine = await openEngine({ model: copy });
    expect((await engine.complete({ tokens: promptIds(5), ...GREEDY, maxTokens: 2 })).tokenIds).toHaveLength(2);
    const error = await rejection(engine.complete({ messages: [{ role: 'user', content: 'hello' }] }));
    expect(error).toMatchObject({ code: 'CHAT_TEMPLATE_MISSING' });
    expect(error.message).toMatch(/prompt.*tokens/);
  });
});
