/**
 * Answers that nobody reads while they come.
 *
 * Must not happen: a late reader of one answer that lets another run ahead of its own reader, a `result` that never settles
 * because nobody iterates.
 */
import { expect, test } from 'vitest';
import type { Engine } from '../../dist/index.js';
import { GREEDY, idsOf, openEngine, promptIds, readAll, until, watchEngines } from '../helpers/engines.ts';

watchEngines();

const long = { tokens: promptIds(20), ...GREEDY, maxTokens: 300 };

/** Tokens decoded so far, once they stay the same for a while. */
async function standstill(engine: Engine): Promise<number> {
  let last = -1;
  let same = 0;
  await until('decoding stands still', () => {
    const { decoded } = engine.stats().tokens;
    same = decoded === last ? same + 1 : 0;
    last = decoded;
    return same >= 10;
  });
  return last;
}

test('reading an answer that has ended long ago counts for that answer alone', async () => {
  const engine = await openEngine({ maxUnreadChunks: 8 });
  const ended = Array.from({ length: 6 }, () => engine.generate({ ...long, maxTokens: 8 }));
  await until('all have ended', () => engine.stats().requests.finished === 6);
  // Takes the slots of those that have ended, one after the other.
  const running = Array.from({ length: 6 }, (_, i) => engine.generate({ ...long, tokens: promptIds(20, i) }));
  const before = await standstill(engine);
  for (const generation of ended) await readAll(generation);
  expect(await standstill(engine)).toBe(before);
  for (const generation of running) await generation.return!();
});

test('result settles although nobody iterates, and the chunks can still be read', async () => {
  const engine = await openEngine({ maxUnreadChunks: 2 });
  const generation = engine.generate(long);
  await standstill(engine);
  const { tokenIds } = await generation.result;
  expect(tokenIds).toHaveLength(300);
  expect(idsOf(await readAll(generation))).toEqual(tokenIds);
});

test('result does not read for one who iterates', async () => {
  const engine = await openEngine({ maxUnreadChunks: 2 });
  const generation = engine.generate(long);
  await generation.next();
  const result = generation.result;
  expect(await standstill(engine)).toBeLessThan(40);
  await readAll(generation);
  expect((await result).tokenIds).toHaveLength(300);
});
