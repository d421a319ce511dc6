/**
 * Several requests at once: queued behind each other, and two at a time.
 *
 * Must not happen: an answer that differs from the one the request gets alone, a request that starves, a slot that stays taken.
 */
import { describe, expect, test } from 'vitest';
import { cacheIn, GREEDY, idsOf, listen, openEngine, promptIds, readAll, rejection, until, watchEngines } from '../helpers/engines.ts';
import { seeded } from '../helpers/seed.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

function requests(count: number) {
  const random = seeded('side-by-side');
  return Array.from({ length: count }, (_, i) => ({
    tokens: promptIds(random.integer(1, 90), i),
    maxTokens: random.integer(1, 40),
    ignoreEos: true,
    temperature: i % 3 === 0 ? 0 : 1,
    seed: i,
    requestId: `q${i}`,
  }));
}

describe.each([{ maxNumSeqs: 1 }, { maxNumSeqs: 2 }])('up to $maxNumSeqs at a time', ({ maxNumSeqs }) => {
  test('each answer is the one the request gets alone', async () => {
    const wanted = requests(12);
    const alone = await openEngine();
    const expected: number[][] = [];
    for (const request of wanted) expected.push((await alone.complete(request)).tokenIds);
    await alone.close();

    const engine = await openEngine({ maxNumSeqs, prefillChunk: 32 });
    const all = wanted.map((request, i) => (i % 2 === 0 ? engine.complete(request).then((r) => r.tokenIds) : readAll(engine.generate(request)).then(idsOf)));
    expect(await Promise.all(all)).toEqual(expected);
    expect(engine.stats().requests).toEqual({ queued: 0, running: 0, finished: 12, aborted: 0, failed: 0 });
  });

  test('with the cache on, and twice over: the second round is restored and the same', async () => {
    const wanted = requests(8).map((request) => ({ ...request, tokens: [...promptIds(40), ...request.tokens] }));
    const engine = await openEngine({ maxNumSeqs, cache: cacheIn(tempDir()) });
    const heard = listen(engine);
    const first = await Promise.all(wanted.map((request) => engine.complete(request)));
    await engine.flush();
    const second = await Promise.all(wanted.map((request) => engine.complete(request)));
    expect(second.map((r) => r.tokenIds)).toEqual(first.map((r) => r.tokenIds));
    expect(second.map((r) => r.usage.cachedTokens)).toEqual(wanted.map((r) => r.tokens.length - 1));
    expect(heard.degraded).toEqual([]);
  });
});

describe('turns', () => {
  test('two running requests advance together; a third waits and then runs', async () => {
    const engine = await openEngine({ maxNumSeqs: 2 });
    const order: string[] = [];
    const run = async (id: string, maxTokens: number) => {
      for await (const chunk of engine.generate({ tokens: promptIds(20), ...GREEDY, maxTokens })) if (chunk.tokenIds.length > 0) order.push(id);
    };
    const running = [run('a', 60), run('b', 60), run('c', 5)];
    await until('two run and one waits', () => engine.stats().requests.queued === 1 && engine.stats().requests.running === 2);
    await Promise.all(running);
    // c begins only when a or b has ended, and a and b take turns until then.
    const first = order.indexOf('c');
    expect(Math.max(order.lastIndexOf('a'), order.lastIndexOf('b'))).toBeGreaterThan(0);
    expect(Math.min(order.lastIndexOf('a'), order.lastIndexOf('b'))).toBeLessThan(first);
    expect(new Set(order.slice(0, 10)).size).toBe(2);
  });

  test('a full queue refuses the next request with QUEUE_FULL and takes one again when there is room', async () => {
    const engine = await openEngine({ maxQueue: 2 });
    const request = { tokens: promptIds(10), ...GREEDY, maxTokens: 30 };
    const two = [engine.complete(request), engine.complete(request)];
    const refused = await rejection(engine.complete(request));
    expect(refused).toMatchObject({ code: 'QUEUE_FULL' });
    expect(() => engine.generate(request)).toThrow(/maxQueue/);
    await Promise.all(two);
    expect((await engine.complete(request)).tokenIds).toHaveLength(30);
  });
});
