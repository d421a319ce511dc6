/**
 * What the figures say about stored boundaries (design section 8): each has one state, and the states add up.
 *
 * Must not happen: a boundary that is lost although there was nothing to wait for but a busy disk, one that is counted twice or
 * not at all, an event for one that is not on disk.
 */
import { describe, expect, test } from 'vitest';
import type { Engine } from '../../dist/index.js';
import { cacheIn, GREEDY, listen, openEngine, promptIds, readAll, until, watchEngines } from '../helpers/engines.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchEngines();

function sum(engine: Engine): number {
  const { durable, written, superseded, evicted, failed, pending, dropped } = engine.stats().boundaries;
  return durable + written + superseded + evicted + failed + pending + Object.values(dropped).reduce((a, b) => a + b, 0);
}

describe('boundaries of a lone request', () => {
  test('are all stored, however much faster than the disk the model is', async () => {
    const dir = tempDir();
    const engine = await openEngine({ cache: cacheIn(dir) });
    const heard = listen(engine);
    await engine.prefill({ tokens: promptIds(3_000), requestId: 'p' });
    await engine.flush();
    // 187 full blocks, the point before the last token, and the end.
    expect(engine.stats().boundaries).toMatchObject({ captured: 189, durable: 189, dropped: {}, failed: 0, pending: 0, written: 0 });
    expect(engine.stats().store.pendingBytes).toBe(0);
    expect(heard.durable.map((event) => event.tokenCount).sort((a, b) => a - b)).toEqual([
      ...Array.from({ length: 187 }, (_, i) => (i + 1) * 16),
      2_999,
      3_000,
    ]);
    expect(new Set(heard.durable.map((event) => event.requestId))).toEqual(new Set(['p']));
    for (const { block } of heard.durable) expect(listTree(dir).filter((path) => path.includes(block))).toHaveLength(2);
  });

  test('are all stored while another request only waits for its reader', async () => {
    const engine = await openEngine({ maxNumSeqs: 2, maxUnreadChunks: 2, cache: cacheIn(tempDir()) });
    const paused = engine.generate({ tokens: promptIds(20, 8), ...GREEDY, maxTokens: 100, persist: 'off' });
    await paused.next();
    await until('it waits', () => engine.stats().tokens.decoded >= 3);
    await engine.prefill({ tokens: promptIds(3_000) });
    await engine.flush();
    expect(engine.stats().boundaries).toMatchObject({ captured: 189, durable: 189, dropped: {} });
    await paused.return!();
  });

  test('in decode, too: one for each full block, and the end of the answer', async () => {
    const engine = await openEngine({ cache: cacheIn(tempDir()) });
    const heard = listen(engine);
    await engine.complete({ tokens: promptIds(20), ...GREEDY, maxTokens: 70 });
    await engine.flush();
    // 90 tokens in all; the last one was sampled, never computed.
    expect(heard.durable.map((event) => event.tokenCount).sort((a, b) => a - b)).toEqual([16, 19, 32, 48, 64, 80, 89]);
  });
});

describe('the sum over states', () => {
  test('equals what was captured whenever nothing moves, and after close', async () => {
    const engine = await openEngine({ maxNumSeqs: 3, cache: cacheIn(tempDir(), { pendingMaxBytes: 1024 * 1024 }) });
    const all = Array.from({ length: 9 }, (_, i) => engine.complete({ tokens: promptIds(200, i), ...GREEDY, maxTokens: 60 }));
    await Promise.all(all);
    await engine.flush();
    expect(sum(engine)).toBe(engine.stats().boundaries.captured);
    const report = await engine.close();
    expect(report.lost).toBe(0);
    const { captured, durable, dropped } = engine.stats().boundaries;
    expect(sum(engine)).toBe(captured);
    expect(durable).toBeGreaterThan(0);
    expect(Object.keys(dropped).filter((reason) => reason !== 'backpressure')).toEqual([]);
  });

  test("persist 'finish' stores nothing before the request has ended, then all blocks and both ends; an abort stores what was computed", async () => {
    const engine = await openEngine({ maxUnreadChunks: 2, cache: cacheIn(tempDir(), { persist: 'finish' }) });
    const heard = listen(engine);
    const request = { tokens: promptIds(100), ...GREEDY, maxTokens: 20 };
    const generation = engine.generate(request);
    await generation.next();
    await until('it waits for its reader', () => engine.stats().tokens.decoded >= 3);
    expect(engine.stats().boundaries.captured).toBe(0);
    await readAll(generation);
    await engine.flush();
    expect(heard.durable.map((event) => event.tokenCount).sort((a, b) => a - b)).toEqual([99, 119]);
    expect((await engine.complete(request)).usage.cachedTokens).toBe(99);

    const other = engine.generate({ ...request, tokens: promptIds(60, 3), maxTokens: 1_000 });
    await other.next();
    await other.return!();
    await until('it has ended', () => engine.stats().requests.running === 0);
    await engine.flush();
    expect((await engine.complete({ ...request, tokens: promptIds(60, 3) })).usage.cachedTokens).toBe(59);
    expect(sum(engine)).toBe(engine.stats().boundaries.captured);
  });

  test('persist off stores nothing and finds nothing missing', async () => {
    const dir = tempDir();
    const engine = await openEngine({ cache: cacheIn(dir) });
    const { missReason } = await engine.complete({ tokens: promptIds(100), ...GREEDY, maxTokens: 20, persist: 'off' });
    await engine.flush();
    expect(missReason).toBe('absent');
    expect(engine.stats().boundaries.captured).toBe(0);
    expect(listTree(dir).filter((path) => path.endsWith('.safetensors'))).toEqual([]);
  });
});
