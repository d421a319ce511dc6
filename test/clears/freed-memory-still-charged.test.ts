/**
 * [J113] What was freed a moment ago and is still charged. Must not happen: memory on its way out taken for use by requests, or memory in use
 * taken for memory on its way out.
 */
import { describe, expect, test } from 'vitest';
import { UnreleasedWindow } from '../../src/engine-thread/mlx/unreleased.ts';
import { Thread } from '../native/fixtures/thread.ts';

const MB = 1_000_000;

describe('the estimate', () => {
  const window = () => {
    const freed = new UnreleasedWindow();
    // 1,000 MB are charged; the clear gives back 300 of the 700 that the allocator holds.
    freed.freed({ now: 0, footprint: 1_000 * MB, allocator: 700 * MB }, 300 * MB);
    return freed;
  };

  test('[J113] is what the kernel has not taken off yet', () => {
    const freed = window();
    expect(freed.estimate({ now: 10, footprint: 1_000 * MB, allocator: 400 * MB })).toBe(300 * MB);
    expect(freed.estimate({ now: 200, footprint: 850 * MB, allocator: 400 * MB })).toBe(150 * MB);
    expect(freed.estimate({ now: 300, footprint: 700 * MB, allocator: 400 * MB })).toBe(0);
  });

  test('[J113] leaves out what the allocator has taken since', () => {
    expect(window().estimate({ now: 10, footprint: 1_200 * MB, allocator: 600 * MB })).toBe(300 * MB);
    expect(window().estimate({ now: 10, footprint: 900 * MB, allocator: 600 * MB })).toBe(0);
  });

  test('[J113] is never more than was freed, and never negative', () => {
    expect(window().estimate({ now: 10, footprint: 2_000 * MB, allocator: 400 * MB })).toBe(300 * MB);
    expect(window().estimate({ now: 10, footprint: 100 * MB, allocator: 400 * MB })).toBe(0);
  });

  test('[J113] adds several clears up, and forgets each after 10 s', () => {
    const freed = window();
    freed.freed({ now: 6_000, footprint: 1_000 * MB, allocator: 500 * MB }, 100 * MB);
    expect(freed.estimate({ now: 9_000, footprint: 1_000 * MB, allocator: 400 * MB })).toBe(300 * MB);
    expect(freed.estimate({ now: 9_000, footprint: 1_500 * MB, allocator: 400 * MB })).toBe(400 * MB);
    expect(freed.estimate({ now: 10_001, footprint: 1_500 * MB, allocator: 400 * MB })).toBe(100 * MB);
    expect(freed.estimate({ now: 16_001, footprint: 1_500 * MB, allocator: 400 * MB })).toBe(0);
    expect(freed.isEmpty).toBe(true);
  });
});

test('[J113] a clear is noted with what it gave back, and with the footprint before it', async () => {
  const a = await Thread.start({ mlx: true });
  const found = await a.value<{ before: number; after: number; later: number }>(`
    const own = mx.openEngineStream('cpu');
    mx.scope(() => mx.evaluate([mx.full([1 << 20], 1, 'float32', own)]));
    const before = sync.unreleasedBytes();
    // A kernel that is slow to take off what it got back.
    const { rss } = process.memoryUsage;
    const charged = rss();
    process.memoryUsage.rss = () => charged;
    sync.syncAndClearCache(own, { acquire: () => true, release: () => {} });
    const after = sync.unreleasedBytes();
    process.memoryUsage.rss = () => charged - (4 << 20);
    const later = sync.unreleasedBytes();
    process.memoryUsage.rss = rss;
    return { before, after, later };`);
  expect(found.before).toBe(0);
  expect(found.after).toBeGreaterThanOrEqual(4 << 20);
  expect(found.later).toBe(found.after - (4 << 20));
});
