/**
 * The store's threads die under a working engine: the keeper, and with it writer and store worker.
 *
 * Must not happen: an answer that suffers, a death that is not told, persistence that does not come back by itself.
 */
import type { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import type { Engine } from '../../dist/index.js';
import { cacheIn, GREEDY, type Heard, listen, openEngine, promptIds, until, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

/** An engine and the keeper of its folder: the first thread that main makes. */
async function openWithKeeper(dir: string): Promise<{ engine: Engine; heard: Heard; keeper: Worker }> {
  const workers: Worker[] = [];
  const onWorker = (worker: Worker): void => void workers.push(worker);
  process.on('worker', onWorker);
  try {
    const engine = await openEngine({ cache: cacheIn(dir) });
    return { engine, heard: listen(engine), keeper: workers[0]! };
  } finally {
    process.off('worker', onWorker);
  }
}

describe('the keeper', () => {
  test.each(['idle', 'while blocks are on their way', 'in a restore'])(
    'dies %s: told once, taken back, answers are right, and storing goes on',
    async (when) => {
      const dir = tempDir();
      const plain = await openEngine();
      const { engine, heard, keeper } = await openWithKeeper(dir);
      const request = { tokens: promptIds(1_500), ...GREEDY, maxTokens: 10 };
      const right = (await plain.complete(request)).tokenIds;
      if (when === 'in a restore') {
        await engine.complete(request);
        await engine.flush();
      }
      const answer = when === 'idle' ? null : engine.complete(request);
      if (when === 'while blocks are on their way') await until('blocks are on their way', () => engine.stats().boundaries.captured > 10);
      await keeper.terminate();
      if (answer !== null) expect((await answer).tokenIds).toEqual(right);
      await until('the threads are back', () => heard.recovered.length > 0);
      // What was lost with them is stored again.
      let cached = 0;
      for (let i = 0; i < 20 && cached !== 1_499; i++) {
        const result = await engine.complete(request);
        expect(result.tokenIds).toEqual(right);
        cached = result.usage.cachedTokens;
        await engine.flush({ deadlineMs: 2_000 });
      }
      expect(cached).toBe(1_499);
      // When one of them died holding a lock of the session, that is told as well, and a new session is made.
      const codes = heard.degraded.map((event) => event.code);
      expect(codes).toContain('STORE_WORKER_DIED');
      expect(codes.filter((code) => code !== 'STORE_WORKER_DIED' && code !== 'SESSION_CLOSED')).toEqual([]);
      expect(new Set(codes).size).toBe(codes.length);
      expect(heard.recovered.map((event) => event.code).sort()).toEqual(codes.sort());
      expect(engine.health()).toMatchObject({ status: 'ok', persistence: 'on' });
      const { captured, durable, failed, superseded, evicted, pending, written, dropped } = engine.stats().boundaries;
      expect(durable + failed + superseded + evicted + pending + written + Object.values(dropped).reduce((x, y) => x + y, 0)).toBe(captured);
      expect((await engine.close({ deadlineMs: 5_000 })).lost).toBe(pending + written);
    },
  );
});

describe('close', () => {
  test('with hardly any time says what was lost, and the next engine finds a sound folder', async () => {
    const dir = tempDir();
    const engine = await openEngine({ cache: cacheIn(dir) });
    await engine.prefill({ tokens: promptIds(3_000) });
    const report = await engine.close({ deadlineMs: 0 });
    const { durable, failed, pending, written, captured, dropped } = engine.stats().boundaries;
    expect(report.lost).toBe(pending + written);
    expect(durable + failed + pending + written + Object.values(dropped).reduce((a, b) => a + b, 0)).toBe(captured);
    const next = await openEngine({ cache: cacheIn(dir) });
    const heard = listen(next);
    const { usage } = await next.complete({ tokens: promptIds(3_000), ...GREEDY, maxTokens: 1 });
    expect(usage.cachedTokens).toBeGreaterThanOrEqual(0);
    await next.flush();
    expect((await next.complete({ tokens: promptIds(3_000), ...GREEDY, maxTokens: 1 })).usage.cachedTokens).toBe(2_999);
    expect(heard.degraded).toEqual([]);
  });
});
