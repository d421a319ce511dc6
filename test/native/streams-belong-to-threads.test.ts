// A stream belongs to the thread that made it. What must not happen: work on another thread's stream that seems to succeed, an op that slips
// onto another stream unnoticed, or a wait for the wrong stream.
import { describe, expect, test } from 'vitest';
import { Thread } from './fixtures/thread.ts';

const start = (): Promise<Thread> => Thread.start({ mlx: true });

describe('a stream of another thread', () => {
  test('can be built on but not evaluated, and the graph is unharmed', async () => {
    const [a, b] = [await start(), await start()];
    const foreign = await a.value<number>("return (g.s = mx.openEngineStream('cpu'))");
    await b.value("g.s = mx.openEngineStream('cpu')");
    const { error } = await b.run(`g.t = mx.full([2], 1, 'float32', ${foreign}); g.own = mx.full([2], 2, 'float32', g.s); mx.evaluate([g.t, g.own])`);
    expect(error).toMatchObject({ code: 'STREAM_AFFINITY', name: 'StreamAffinityError' });
    expect(error!.message).toContain('There is no Stream(');
    // It is refused before anything is spoilt.
    expect(await b.value('return mx.status(g.t)')).toBe('unscheduled');
    expect(await b.value('mx.evaluate([g.own]); return mx.toFloat32Array(g.own)[0]')).toBe(2);
  });

  test('is gone after clearStreams, and a new one works', async () => {
    const a = await start();
    await a.value("g.s = mx.openEngineStream('cpu'); mx.evaluate([mx.zeros([2], 'float32', g.s)]); sync.clearThreadStreams()");
    expect(await a.value('return mx.liveStreams().length')).toBe(0);
    expect((await a.run("mx.evaluate([mx.zeros([2], 'float32', g.s)])")).error?.code).toBe('STREAM_AFFINITY');
    expect(await a.value("const s = mx.openEngineStream('cpu'); const t = mx.full([1], 3, 'float32', s); mx.evaluate([t]); return mx.itemNumber(t)")).toBe(3);
  });
});

describe('the counter of ops on other streams', () => {
  test('[J105] stays 0 for a thread that passes its stream, composite ops and depends included', async () => {
    const a = await start();
    const count = await a.value(`
      const s = mx.openEngineStream('cpu');
      const x = mx.full([1, 2, 8, 32], 0.1, 'float32', s);
      const results = [mx.silu(x, s), mx.softplus(x, s), mx.sdpa(x, x, x, 1, { mask: 'causal' }, s), mx.rope(x, 32, false, 10000, 1, 3, null, s),
        mx.topk(x, 2, -1, s), mx.logsumexp(x, -1, false, s), mx.depends([x], [x], s)[0], mx.random.categorical(x, -1, mx.random.key(1), s),
        mx.einsum('abcd,abcd->abc', [x, x], s), mx.tril(x, 0, s), mx.pad(x, [[0, 0], [0, 0], [0, 1], [0, 0]], 0, s)];
      mx.evaluate(results);
      return mx.foreignStreamOps();`);
    expect(count).toBe(0);
    expect(await a.value('return mx.liveStreams().length')).toBe(1);
  });

  test('[J105] counts each op on a second stream', async () => {
    const a = await start();
    const count = await a.value(`
      const s = mx.openEngineStream('cpu');
      const other = mx.newStream('cpu');
      const x = mx.zeros([2], 'float32', s);
      mx.exp(x, other);
      mx.split(x, 2, 0, other);
      mx.exp(x, s);
      return mx.foreignStreamOps();`);
    expect(count).toBe(3);
  });
});

test('synchronize waits for the stream it is given, and only for it', async () => {
  const a = await start();
  const result = await a.value<{ other: string; own: string; before: number; after: number }>(`
    const s = mx.openEngineStream('cpu');
    const other = mx.newStream('cpu');
    const t = native.testDelay(mx.full([1], 1, 'float32', s), 150, s);
    mx.asyncEvaluate([t]);
    const from = performance.now();
    mx.synchronize(other);
    const before = performance.now() - from;
    mx.synchronize(s);
    return { before, after: performance.now() - from };`);
  expect(result.after).toBeGreaterThan(100);
  expect(result.before).toBeLessThan(result.after / 2);
});

test('threads are apart: handles of one mean nothing to another', async () => {
  const [a, b] = [await start(), await start()];
  const handle = await a.value<number>("g.s = mx.openEngineStream('cpu'); return (g.t = mx.full([2], 1, 'float32', g.s))");
  await b.value("g.s = mx.openEngineStream('cpu'); g.t = mx.full([2], 2, 'float32', g.s)");
  expect((await b.run(`return mx.shapeOf(${handle})`)).error?.code).toBe('TENSOR_RELEASED');
});

describe('clearing the cache', () => {
  const lock = '{ acquire: (ms, site) => (log.push(["acquire", ms, site]), true), release: () => log.push(["release"]) }';

  test('[J104] happens under the lock, after the stream is drained', async () => {
    const a = await start();
    const result = await a.value<{ log: unknown[]; cached: number[]; status: number; done: boolean; counts: unknown }>(`
      const s = mx.openEngineStream('cpu');
      mx.evaluate([mx.scope(() => mx.retain(mx.zeros([1 << 20], 'float32', s)))].map((t) => t));
      mx.scope(() => mx.evaluate([mx.full([1 << 20], 1, 'float32', s)]));
      const t = native.testDelay(mx.full([1], 1, 'float32', s), 80, s);
      mx.asyncEvaluate([t]);
      const log = [];
      const cached = [mx.cacheBytes()];
      const done = sync.syncAndClearCache(s, ${lock});
      cached.push(mx.cacheBytes());
      return { log, cached, done, value: mx.itemNumber(t), counts: { ...sync.clearCounts() } };`);
    expect(result.done).toBe(true);
    expect(result.log).toEqual([['acquire', 1000, 'syncAndClearCache'], ['release']]);
    expect(result.cached[0]).toBeGreaterThan(0);
    expect(result.cached[1]).toBe(0);
    expect(result.counts).toMatchObject({ done: 1, skipped: 0 });
  });

  test('[J104] is skipped and counted when the lock is not had, and the lock is released when the stream fails', async () => {
    const a = await start();
    const result = await a.value<{ done: boolean; counts: unknown; log: unknown[]; code: string }>(`
      const s = mx.openEngineStream('cpu');
      const done = sync.syncAndClearCache(s, { acquire: () => false, release: () => { throw new Error('not held'); } });
      const log = [];
      // It fails once the lock is had: a failure before that would come out of the call that queues it.
      const late = native.testDelay(mx.zeros([1], 'float32', s), 30, s);
      const failingLock = { acquire: () => { mx.asyncEvaluate([native.testFailOnStream(late, s)]); return true; }, release: () => log.push('release') };
      let code = 'none';
      try { sync.syncAndClearCache(s, failingLock); } catch (error) { code = error.code; }
      return { done, counts: { ...sync.clearCounts() }, log, code };`);
    expect(result).toMatchObject({ done: false, counts: { done: 0, skipped: 1 }, log: ['release'], code: 'MLX_ERROR' });
  });

  test('[I100] a stream that is gone is passed over, any other error is not', async () => {
    const a = await start();
    const codes = await a.value<string[]>(`
      const s = mx.openEngineStream('cpu');
      const code = (fn) => { try { fn(); return 'none'; } catch (error) { return error.code; } };
      mx.asyncEvaluate([native.testFailOnStream(mx.zeros([1], 'float32', s), s)]);
      return [code(() => sync.safeSyncStream(s)), code(() => sync.safeSyncStream(s))];`);
    expect(codes).toEqual(['MLX_ERROR', 'none']);
  });
});
