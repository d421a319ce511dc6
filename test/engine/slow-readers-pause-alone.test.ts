/**
 * Bounded delivery: a reader that stops reading pauses its own sequence and nothing else.
 *
 * Must not happen: chunks that pile up in memory, another request that waits for the slow reader, an engine that cannot be closed.
 */
import { describe, expect, test } from 'vitest';
import type { Engine } from '../../dist/index.js';
import { GREEDY, idsOf, openEngine, promptIds, readAll, rejection, until, watchEngines } from '../helpers/engines.ts';

watchEngines();

const long = { tokens: promptIds(20), ...GREEDY, maxTokens: 300 };
const quick = { tokens: promptIds(30, 4), ...GREEDY, maxTokens: 50 };

/** Tokens decoded so far, once they stay the same. */
async function standstill(engine: Engine): Promise<number> {
  let last = -1;
  await until('decoding stands still', () => {
    const { decoded } = engine.stats().tokens;
    const same = decoded > 0 && decoded === last;
    last = decoded;
    return same;
  });
  // Looked at over some more turns: a sequence that only was slow goes on meanwhile.
  for (let i = 0; i < 10; i++) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    last = Math.max(last, engine.stats().tokens.decoded);
  }
  return last;
}

describe('a reader that stops', () => {
  test('gets no further than the limit ahead, and everything when it reads on', async () => {
    const engine = await openEngine({ maxUnreadChunks: 8 });
    const whole = await engine.complete(long);
    const before = engine.stats().tokens.decoded;
    const generation = engine.generate(long);
    const first = [await generation.next(), await generation.next()];
    // At most 8 chunks wait; a chunk is one token or, where characters are cut, a few.
    expect((await standstill(engine)) - before).toBeLessThan(60);
    const rest = await readAll(generation);
    expect(idsOf([...first.map((result) => result.value!), ...rest])).toEqual(whole.tokenIds);
  });

  test('goes on after each pause, chunk by chunk', async () => {
    const engine = await openEngine({ maxUnreadChunks: 1 });
    const generation = engine.generate({ ...long, maxTokens: 40 });
    const ids: number[] = [];
    for await (const chunk of generation) {
      ids.push(...chunk.tokenIds);
      if (chunk.index % 5 === 0) await standstill(engine);
    }
    expect(ids).toHaveLength(40);
  });

  test.each([{ maxNumSeqs: 2 }, { maxNumSeqs: 3 }])('does not hold up others (maxNumSeqs $maxNumSeqs)', async ({ maxNumSeqs }) => {
    const engine = await openEngine({ maxNumSeqs, maxUnreadChunks: 2 });
    const stopped = Array.from({ length: maxNumSeqs - 1 }, () => engine.generate(long));
    for (const generation of stopped) await generation.next();
    for (let i = 0; i < 3; i++) expect((await engine.complete(quick)).tokenIds).toHaveLength(50);
    expect(idsOf(await readAll(engine.generate(quick)))).toHaveLength(50);
    for (const generation of stopped) expect((await readAll(generation)).at(-1)!.finishReason).toBe('length');
  });

  test('one that never reads does not hinder close, and is told when it looks', async () => {
    const engine = await openEngine({ maxUnreadChunks: 4 });
    const generation = engine.generate(long);
    const unread = engine.generate(long);
    await standstill(engine);
    await engine.close();
    expect(await rejection(generation.next())).toMatchObject({ code: 'ENGINE_CLOSED' });
    expect(await rejection(unread.result)).toMatchObject({ code: 'ENGINE_CLOSED' });
  });

  test('one that leaves gives its turn to the next in the queue', async () => {
    const engine = await openEngine({ maxUnreadChunks: 2 });
    const generation = engine.generate(long);
    await generation.next();
    const next = engine.complete(quick);
    await standstill(engine);
    expect(engine.stats().requests).toMatchObject({ running: 1, queued: 1 });
    await generation.return!();
    expect((await next).tokenIds).toHaveLength(50);
  });

  test('many of them hold a bounded number of chunks: memory does not grow with what they did not read', async () => {
    const engine = await openEngine({ maxNumSeqs: 4, maxUnreadChunks: 4, maxQueue: 64 });
    const before = engine.stats().tokens.decoded;
    const readers = Array.from({ length: 4 }, (_, i) => engine.generate({ ...long, tokens: promptIds(20, i) }));
    for (const reader of readers) await reader.next();
    const decoded = (await standstill(engine)) - before;
    expect(decoded).toBeLessThan(4 * 40);
    for (const reader of readers) await reader.return!();
  });
});
