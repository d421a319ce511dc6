/**
 * A disk on which writes do not end, for as long as nobody knows.
 *
 * Must not happen: an answer that pays a wait for room at each of its boundaries, one that is wrong, a cache that does not come
 * back by itself when the disk does.
 */
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { freezableDisk } from '../helpers/disks.ts';
import { cacheIn, GREEDY, listen, openEngine, promptIds, watchEngines } from '../helpers/engines.ts';

watchEngines();

const MIB = 1024 * 1024;
const request = { tokens: promptIds(1_500), ...GREEDY, maxTokens: 20 };

test.each(['boundary', 'finish'] as const)(
  'persist %s: one wait for room, then answers go on without it; the disk comes back, and so does the cache',
  async (persist) => {
    const disk = freezableDisk();
    if ('reason' in disk) return console.log(disk.reason);
    const uncached = await openEngine();
    const { tokenIds } = await uncached.complete(request);
    await uncached.close();

    const engine = await openEngine({ cache: cacheIn(join(disk.path, 'cache'), { maxBytes: 40 * MIB, pendingMaxBytes: MIB, persist }) });
    await engine.complete({ ...request, tokens: promptIds(100, 5) });
    await engine.flush();
    disk.freeze();
    const limit = setTimeout(disk.thaw, 30_000);
    onTestFinished(() => clearTimeout(limit));
    const begin = performance.now();
    expect((await engine.complete(request)).tokenIds).toEqual(tokenIds);
    // The limits of a save are 2 s for room and 2 s for a write; there are 94 boundaries.
    expect(performance.now() - begin).toBeLessThan(15_000);
    expect(engine.stats().boundaries.dropped.backpressure).toBeGreaterThan(0);

    disk.thaw();
    await engine.flush();
    for (let i = 0, cached = 0; cached < 1_499; i++) {
      expect(i).toBeLessThan(10);
      const again = await engine.complete(request);
      expect(again.tokenIds).toEqual(tokenIds);
      cached = again.usage.cachedTokens;
      await engine.flush();
    }
  },
);

test('one request waits for its prefix in vain, the next ones know; when the disk is back, so are the prefixes', async () => {
  const disk = freezableDisk();
  if ('reason' in disk) return console.log(disk.reason);
  const stored = { ...request, tokens: promptIds(300, 9) };
  const engine = await openEngine({ cache: cacheIn(join(disk.path, 'cache'), { maxBytes: 40 * MIB, restoreDeadlineMs: 500 }) });
  const heard = listen(engine);
  const { tokenIds } = await engine.complete(stored);
  await engine.flush();
  disk.freeze();
  const limit = setTimeout(disk.thaw, 30_000);
  onTestFinished(() => clearTimeout(limit));
  // Its files are read from memory; the store worker gets stuck behind it, on noting that they were used.
  expect(await engine.complete(stored)).toMatchObject({ tokenIds, missReason: null, usage: { cachedTokens: 299 } });
  for (let i = 0; i < 3; i++) {
    const answer = await engine.complete(stored);
    expect(answer).toMatchObject({ tokenIds, missReason: 'deadline', usage: { cachedTokens: 0 } });
  }
  const why = heard.miss.filter(({ reason }) => reason === 'deadline').map(({ detail }) => detail);
  expect(why).toEqual([
    expect.stringContaining('longer than'),
    expect.stringContaining('has done nothing since'),
    expect.stringContaining('has done nothing since'),
  ]);

  disk.thaw();
  await engine.flush();
  expect((await engine.complete(stored)).usage.cachedTokens).toBe(299);
});
