/**
 * An engine that leases every state, and the rows of every finished sequence. Must not happen: an answer after a restore that differs, a boundary
 * that is lost because the engine was closed right behind it, an array that is held after its bytes were copied, rows of a living cache leased.
 */
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { mlx } from '../../dist/engine-thread/mlx/binding.js';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import { cacheIn, GREEDY, listen, openEngine, promptIds, until, watchEngines } from '../helpers/engines.ts';
import { familyDir } from '../helpers/families.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();
beforeEach(() => {
  // Engines read it on their own threads, which are made with this process's environment.
  vi.stubEnv('TIDEMARK_LEASE_FROM_BYTES', '1');
});
afterEach(() => {
  vi.unstubAllEnvs();
});

/** Leases are the process's: main sees those of every engine. */
const leases = (): number => mlx().leaseCount();
const request = (step: number) => ({ tokens: promptIds(150, step), ...GREEDY, maxTokens: 40 });

describe.each(['boundary', 'finish'] as const)("persist '%s'", (persist) => {
  test('answers after a restore are the same, everything is stored, and nothing is held', async () => {
    const dir = tempDir();
    const first = await openEngine({ cache: cacheIn(dir) });
    const heard = listen(first);
    const answers = await Promise.all([1, 2].map((step) => first.complete({ ...request(step), persist })));
    await first.flush();
    await until('no lease is held', () => leases() === 0);
    const { streams, boundaries, store } = first.stats();
    expect(streams.leases).toBeGreaterThan(0);
    expect(streams).toMatchObject({ foreignOps: 0, clearsSkipped: 0 });
    expect(boundaries).toMatchObject({ pending: 0, failed: 0, durable: boundaries.captured, dropped: {} });
    expect(store.pendingBytes).toBe(0);
    expect(heard.warning).toEqual([]);
    await first.close();
    const second = await openEngine({ cache: cacheIn(dir) });
    for (const [i, step] of [1, 2].entries()) {
      const { tokenIds, usage } = await second.complete({ ...request(step), persist });
      expect({ tokenIds, cached: usage.cachedTokens }).toEqual({ tokenIds: answers[i]!.tokenIds, cached: 149 });
    }
  });
});

test('[I101] rows of a living cache are copied: states are leased at each boundary, rows only at the end', async () => {
  const engine = await openEngine({ cache: cacheIn(tempDir()) });
  await engine.prefill({ tokens: promptIds(100, 6) });
  await engine.flush();
  const { boundaries, streams } = engine.stats();
  expect({ leases: streams.leases, captured: boundaries.captured }).toEqual({ leases: boundaries.captured + 1, captured: 8 });
});

test('an engine that is closed right behind an answer copies what is left by itself: nothing is lost', async () => {
  const dir = tempDir();
  const first = await openEngine({ cache: cacheIn(dir) });
  const answer = await first.complete({ ...request(3), persist: 'finish' });
  const report = await first.close();
  expect(report.lost).toBe(0);
  expect(leases()).toBe(0);
  const second = await openEngine({ cache: cacheIn(dir) });
  const again = await second.complete(request(3));
  expect({ tokenIds: again.tokenIds, cached: again.usage.cachedTokens }).toEqual({ tokenIds: answer.tokenIds, cached: 149 });
});

test('a restored run equals its fork bit for bit', async () => {
  const dir = tempDir();
  const run = async () => {
    const engine = await openEngine({ cache: cacheIn(dir) });
    const probe = await evaluateTokens(engine, { ids: promptIds(130, 5), chunk: 64, greedy: 5, full: true, forks: true });
    await engine.flush();
    const { leases: given } = engine.stats().streams;
    await engine.close();
    return { probe, given };
  };
  const first = await run();
  expect(first.given).toBeGreaterThan(0);
  const second = await run();
  expect(second.probe.greedy).toEqual(first.probe.greedy);
  expect(second.probe.cachedTokens).toBeGreaterThan(0);
});

test('a state that is stored at reduced precision is encoded by the engine, and not leased', async () => {
  const engine = await openEngine({ cache: cacheIn(tempDir(), { stateCodec: 'rotated-int8' }) });
  await engine.complete({ ...request(4), persist: 'boundary' });
  await engine.flush();
  const { boundaries } = engine.stats();
  expect(boundaries).toMatchObject({ pending: 0, failed: 0, durable: boundaries.captured });
});

test('[I101] rows of a block that is larger than all that may be pending are not leased: its bytes lie outside of the arena', async () => {
  const dir = tempDir();
  const options = { model: familyDir('llama'), cache: cacheIn(dir, { blockSize: 3072, pendingMaxBytes: 1024 * 1024, persist: 'finish' as const }) };
  const oversize = { tokens: promptIds(3_100, 8), ...GREEDY, maxTokens: 30 };
  const first = await openEngine(options);
  const { tokenIds } = await first.complete(oversize);
  await first.flush();
  expect(first.stats().boundaries).toMatchObject({ failed: 0, pending: 0 });
  await first.close();
  const second = await openEngine(options);
  const again = await second.complete(oversize);
  expect(again.usage.cachedTokens).toBeGreaterThanOrEqual(3072);
  expect(again.tokenIds).toEqual(tokenIds);
});
