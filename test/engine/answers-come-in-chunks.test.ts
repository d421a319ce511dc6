/**
 * generate, complete, prefill and countTokens: what comes back for a request that runs by itself.
 *
 * Must not happen: a gap in the indices, text that differs from the tokens' own, half a character, a last chunk without its
 * end report.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cacheIn, decode, GREEDY, idsOf, openEngine, promptIds, readAll, textOf, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

describe('generate', () => {
  test('chunks are numbered from 0, and their text joined is the text of their tokens', async () => {
    const engine = await openEngine();
    const chunks = await readAll(engine.generate({ tokens: promptIds(40), ...GREEDY, maxTokens: 60 }));
    expect(chunks.map((chunk) => chunk.index)).toEqual(chunks.map((_, i) => i));
    expect(idsOf(chunks)).toHaveLength(60);
    expect(textOf(chunks)).toBe(decode(idsOf(chunks)));
  });

  test('bytes that only together make a character come together, whatever the answer is', async () => {
    // The tiny model answers with noise: half characters, bytes that are none, whole ones.
    const engine = await openEngine();
    for (let start = 0; start < 5; start++) {
      const chunks = await readAll(engine.generate({ tokens: promptIds(20, start), temperature: 1, seed: start, ignoreEos: true, maxTokens: 200 }));
      expect(textOf(chunks)).toBe(decode(idsOf(chunks)));
      expect(chunks.filter((chunk) => !chunk.text.isWellFormed())).toEqual([]);
    }
  });

  test('the last chunk alone tells how it ended, what was used and why nothing was reused', async () => {
    const engine = await openEngine();
    const chunks = await readAll(engine.generate({ tokens: promptIds(40), ...GREEDY, maxTokens: 12 }));
    const last = chunks.at(-1)!;
    expect(last).toMatchObject({ finishReason: 'length', usage: { promptTokens: 40, cachedTokens: 0, completionTokens: 12 }, missReason: 'off' });
    for (const chunk of chunks.slice(0, -1)) expect(Object.keys(chunk).sort()).toEqual(['index', 'text', 'tokenIds']);
  });

  test('the same iterator cannot be read twice, and reading on after the end gives the end', async () => {
    const engine = await openEngine();
    const generation = engine.generate({ tokens: promptIds(20), ...GREEDY, maxTokens: 4 });
    await readAll(generation);
    expect(await generation.next()).toEqual({ done: true, value: undefined });
    expect(await readAll(generation)).toEqual([]);
  });

  test('result settles with what the chunks said', async () => {
    const engine = await openEngine();
    const generation = engine.generate({ tokens: promptIds(20), ...GREEDY, maxTokens: 10, requestId: 'mine' });
    const chunks = await readAll(generation);
    const result = await generation.result;
    expect(generation.requestId).toBe('mine');
    expect(result).toMatchObject({ requestId: 'mine', text: textOf(chunks), tokenIds: idsOf(chunks), finishReason: 'length' });
    expect(result.usage).toEqual(chunks.at(-1)!.usage);
    for (const ms of Object.values(result.timings)) expect(ms).toBeGreaterThanOrEqual(0);
  });

  test('greedy answers of tide-5m are those of the reference', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    const reference = JSON.parse(readFileSync(join(TIDE_5M, 'reference.json'), 'utf8')) as { prompt?: string; ids: number[]; greedy: number[] }[];
    for (const { ids, greedy } of reference.slice(0, 3)) {
      const { tokenIds } = await engine.complete({ tokens: ids, ...GREEDY, maxTokens: greedy.length });
      expect(tokenIds).toEqual(greedy);
    }
  });
});

describe('complete', () => {
  test('gives the answer that generate gives', async () => {
    const engine = await openEngine();
    const request = { tokens: promptIds(30, 3), ...GREEDY, maxTokens: 25 };
    const chunks = await readAll(engine.generate(request));
    const whole = await engine.complete(request);
    expect(whole).toMatchObject({ text: textOf(chunks), tokenIds: idsOf(chunks), finishReason: 'length', missReason: 'off' });
  });

  test('runs to its end although nobody reads chunks', async () => {
    const engine = await openEngine({ maxUnreadChunks: 1 });
    const { tokenIds } = await engine.complete({ tokens: promptIds(30), ...GREEDY, maxTokens: 50 });
    expect(tokenIds).toHaveLength(50);
  });
});

describe('prefill', () => {
  test('computes and stores the prompt, and the next request takes all but the last token from there', async () => {
    const engine = await openEngine({ cache: cacheIn(tempDir()) });
    const tokens = promptIds(50);
    expect(await engine.prefill({ tokens })).toMatchObject({ usage: { promptTokens: 50, cachedTokens: 0, completionTokens: 0 }, missReason: 'absent' });
    await engine.flush();
    const { usage, missReason } = await engine.complete({ tokens, ...GREEDY, maxTokens: 3 });
    expect(usage).toEqual({ promptTokens: 50, cachedTokens: 49, completionTokens: 3 });
    expect(missReason).toBeNull();
    // And a longer prompt goes on from its very end.
    const longer = await engine.complete({ tokens: [...tokens, ...promptIds(9, 5)], ...GREEDY, maxTokens: 1 });
    expect(longer.usage.cachedTokens).toBe(50);
  });

  test('decodes nothing', async () => {
    const engine = await openEngine();
    await engine.prefill({ tokens: promptIds(50) });
    expect(engine.stats().tokens).toEqual({ prompt: 50, cached: 0, prefilled: 50, decoded: 0 });
    expect(engine.stats().requests).toMatchObject({ queued: 0, running: 0, finished: 1 });
  });

  test('a long prompt reports its progress, rising to below the end', async () => {
    const engine = await openEngine({ prefillChunk: 16 });
    const seen: number[] = [];
    engine.on('progress', ({ requestId, phase, tokens, totalTokens }) => {
      expect({ requestId, phase, totalTokens }).toEqual({ requestId: 'p', phase: 'prefill', totalTokens: 100 });
      seen.push(tokens);
    });
    await engine.prefill({ tokens: promptIds(100), requestId: 'p' });
    expect(seen).toEqual([16, 32, 48, 64, 80, 96]);
  });
});

describe('countTokens', () => {
  test('counts what a request would use', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    for (const input of [
      { prompt: 'How do I copy a file?' },
      { messages: [{ role: 'user', content: 'How do I copy a file?' }] },
      { tokens: promptIds(7) },
      { tokens: Uint32Array.from(promptIds(8)) },
    ]) {
      const { usage } = await engine.complete({ ...input, maxTokens: 1 });
      expect(await engine.countTokens(input)).toBe(usage.promptTokens);
    }
  });

  test('answers while another request runs', async () => {
    const engine = await openEngine();
    const generation = engine.generate({ tokens: promptIds(20), ...GREEDY, maxTokens: 2_000 });
    await generation.next();
    expect(await engine.countTokens({ prompt: 'ab' })).toBeGreaterThan(0);
    expect(engine.stats().requests.running).toBe(1);
    await generation.return!();
  });
});

describe('messages', () => {
  test('are laid out by the chat template of the model', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    const messages = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'How do I copy a file?' },
    ];
    const laidOut = '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow do I copy a file?<|im_end|>\n<|im_start|>assistant\n';
    const [fromMessages, fromText] = [
      await engine.complete({ messages, ...GREEDY, maxTokens: 16 }),
      await engine.complete({ prompt: laidOut, ...GREEDY, maxTokens: 16 }),
    ];
    expect(fromMessages.tokenIds).toEqual(fromText.tokenIds);
    expect(fromMessages.usage).toEqual(fromText.usage);
  });

  test('templateOptions reach the template', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    const messages = [{ role: 'user', content: 'Hello' }];
    const whole = await engine.countTokens({ messages });
    const open = await engine.countTokens({ messages, templateOptions: { add_generation_prompt: false } });
    expect(open).toBeLessThan(whole);
  });
});
