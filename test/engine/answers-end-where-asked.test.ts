/**
 * Stop strings, stop tokens, the model's own end tokens, maxTokens and the context: where an answer ends and what it then shows.
 *
 * Must not happen: a stop string (or a part of one) in the text, text held back for good that was none, an answer that goes on.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import { GREEDY, idsOf, openEngine, promptIds, readAll, TINY, textOf, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';

watchEngines();

// tide-5m's greedy answer to this prompt: words of one token each, which come again and again.
const PROMPT = 'The file system is';
let whole: { text: string; tokenIds: number[] };

beforeAll(async () => {
  const engine = await openEngine({ model: TIDE_5M });
  whole = await engine.complete({ prompt: PROMPT, ...GREEDY, maxTokens: 40 });
  await engine.close();
});

async function answer(stop: string | string[], maxTokens = 40) {
  const engine = await openEngine({ model: TIDE_5M });
  const chunks = await readAll(engine.generate({ prompt: PROMPT, ...GREEDY, stop, maxTokens }));
  return { text: textOf(chunks), ids: idsOf(chunks), last: chunks.at(-1)!, chunks };
}

/** The text before whichever of the strings is complete first. */
function cutAt(text: string, stops: string[]): string {
  const ends = stops.map((stop) => ({ at: text.indexOf(stop), stop })).filter(({ at }) => at >= 0);
  ends.sort((a, b) => a.at + a.stop.length - (b.at + b.stop.length) || a.at - b.at);
  return ends[0] === undefined ? text : text.slice(0, ends[0].at);
}

describe('stop strings', () => {
  test('end the answer before their first letter and are not shown', async () => {
    // From the middle of one word to the middle of the next but one: no token border is at either end.
    const from = Math.floor(whole.text.length / 3) + 1;
    for (const stop of [whole.text.slice(from, from + 1), whole.text.slice(from, from + 9), whole.text.slice(0, 3)]) {
      const { text, last } = await answer(stop);
      expect(text).toBe(cutAt(whole.text, [stop]));
      expect(last.finishReason).toBe('stop');
    }
  });

  test('across every token border of the answer', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    for (let at = 2; at + 6 < Math.min(60, whole.text.length); at += 3) {
      const stop = whole.text.slice(at, at + 6);
      const { text, finishReason } = await engine.complete({ prompt: PROMPT, ...GREEDY, stop, maxTokens: 40 });
      expect({ stop, text, finishReason }).toEqual({ stop, text: cutAt(whole.text, [stop]), finishReason: 'stop' });
    }
  });

  test('of several, the one that is complete first counts', async () => {
    const stops = [whole.text.slice(10, 24), whole.text.slice(14, 18), 'never said'];
    const { text, last } = await answer(stops);
    expect(text).toBe(cutAt(whole.text, stops));
    expect(last.finishReason).toBe('stop');
  });

  test('text that looked like the beginning of one is shown when it turns out not to be', async () => {
    const stop = `${whole.text.slice(5, 12)}\u0000`;
    const { text, last, chunks } = await answer(stop);
    expect(text).toBe(whole.text);
    expect(last.finishReason).toBe('length');
    // What was held back came with a later chunk, not at the end only.
    expect(chunks.length).toBeGreaterThan(5);
  });

  test('a beginning that is still held at the last token is shown', async () => {
    const stop = `${whole.text.slice(-4)} and more`;
    const { text, last } = await answer(stop);
    expect(text).toBe(whole.text);
    expect(last.finishReason).toBe('length');
  });

  test('no chunk before the end shows any part of it', async () => {
    const stop = whole.text.slice(20, 40);
    const { chunks } = await answer(stop);
    let shown = '';
    for (const chunk of chunks) {
      shown += chunk.text;
      expect(whole.text.slice(0, 20).startsWith(shown)).toBe(true);
    }
  });
});

describe('stop tokens and end tokens', () => {
  test('a stop token ends the answer and is neither shown nor counted', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    const at = whole.tokenIds.findIndex((id, i) => i > 3 && whole.tokenIds.indexOf(id) === i);
    const result = await engine.complete({ prompt: PROMPT, ...GREEDY, stopTokens: [whole.tokenIds[at]!], maxTokens: 40 });
    expect(result.tokenIds).toEqual(whole.tokenIds.slice(0, at));
    expect(result.usage.completionTokens).toBe(at);
    expect(result.finishReason).toBe('stop');
    expect(whole.text.startsWith(result.text)).toBe(true);
  });

  test('the end token of the model ends the answer; with ignoreEos it is a token like others', async () => {
    const engine = await openEngine({ model: TINY });
    // Nearly even chances over 320 tokens meet one of the two end tokens soon.
    const request = { tokens: promptIds(10), temperature: 20, maxTokens: 3_000 };
    const ended = [];
    for (let seed = 1; seed <= 3; seed++) {
      const result = await engine.complete({ ...request, seed });
      expect(result.finishReason).toBe('stop');
      expect(result.tokenIds).not.toContain(0);
      expect(result.tokenIds).not.toContain(2);
      const on = await engine.complete({ ...request, seed, ignoreEos: true, maxTokens: result.tokenIds.length + 20 });
      expect(on.finishReason).toBe('length');
      expect(on.tokenIds).toHaveLength(result.tokenIds.length + 20);
      expect(on.tokenIds.slice(0, result.tokenIds.length)).toEqual(result.tokenIds);
      expect([0, 2]).toContain(on.tokenIds[result.tokenIds.length]);
      ended.push(result.tokenIds.length);
    }
    expect(new Set(ended).size).toBeGreaterThan(1);
  });

  test('stop tokens end an answer with ignoreEos too', async () => {
    const engine = await openEngine({ model: TIDE_5M });
    const stopped = await engine.complete({ prompt: PROMPT, ...GREEDY, ignoreEos: true, stopTokens: [whole.tokenIds[0]!], maxTokens: 40 });
    expect(stopped).toMatchObject({ text: '', tokenIds: [], finishReason: 'stop' });
  });
});

describe('lengths', () => {
  test('maxTokens is exact', async () => {
    const engine = await openEngine();
    for (const maxTokens of [1, 2, 17]) {
      const result = await engine.complete({ tokens: promptIds(20), ...GREEDY, maxTokens });
      expect(result.tokenIds).toHaveLength(maxTokens);
      expect(result.finishReason).toBe('length');
    }
  });

  test('maxTokens is cut to what the context leaves', async () => {
    const engine = await openEngine({ maxContext: 64 });
    const result = await engine.complete({ tokens: promptIds(50), ...GREEDY, maxTokens: 1_000 });
    expect(result.tokenIds).toHaveLength(14);
    expect(result.finishReason).toBe('length');
    const least = await engine.complete({ tokens: promptIds(63), ...GREEDY, maxTokens: 1_000 });
    expect(least.tokenIds).toHaveLength(1);
  });

  test("maxContext never widens the model's own", async () => {
    const engine = await openEngine({ maxContext: 1_000_000 });
    expect(engine.model.maxContext).toBe(4_096);
  });
});
