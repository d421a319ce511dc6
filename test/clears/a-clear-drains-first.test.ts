/**
 * What a clear of the allocator's cache does, in which order, and what it finds in flight.
 *
 * Must not happen: a clear that drained another stream than the one the work is on, that takes the lock before it has drained, or that goes on
 * after a stream has failed.
 */
import { describe, expect, test } from 'vitest';
import { Thread } from '../native/fixtures/thread.ts';

const start = (): Promise<Thread> => Thread.start({ mlx: true });

/** In a thread: `g.log` hears every drain, the lock and the clear; `g.lock` is a lock; streams are called by `g.names`. */
const LISTEN = `
  g.log = []; g.names = new Map();
  const of = (s) => g.names.get(s) ?? 'another';
  const { synchronize, clearCache, clearStreams } = native;
  native.synchronize = (s) => { g.log.push('drain ' + of(s)); synchronize(s); };
  native.clearCache = () => { g.log.push('clear'); clearCache(); };
  native.clearStreams = () => { g.log.push('clear streams'); clearStreams(); };
  g.lock = { acquire: (ms, site) => (g.log.push('lock ' + site), true), release: () => g.log.push('unlock') };
  g.take = () => g.log.splice(0);
  g.code = (fn) => { try { fn(); return 'none'; } catch (error) { return error.code; } };
  /** About this much work queued on the stream, in pieces that depend on each other. */
  g.queue = (s, ms) => {
    let t = mx.full([4], 1, 'float32', s);
    for (let i = 0; i < 10; i++) t = native.testDelay(t, ms / 10, s);
    mx.asyncEvaluate([t]);
    return t;
  };`;

describe('the order', () => {
  test('[J104] drain, lock, the given stream, the others, the default one, clear, unlock', async () => {
    const a = await start();
    await a.value(LISTEN);
    const log = await a.value<string[]>(`
      const own = mx.newStream('cpu'), other = mx.newStream('cpu');
      mx.setEngineStream(own);
      const byDefault = mx.defaultStream('cpu');
      g.names.set(own, 'own').set(other, 'other').set(byDefault, 'default');
      sync.syncAndClearCache(own, g.lock);
      return g.take();`);
    expect(log).toEqual(['drain own', 'lock syncAndClearCache', 'drain own', 'drain other', 'drain default', 'clear', 'unlock']);
  });

  test('[J104] the same when the engine’s stream is the default one, as the engine makes it', async () => {
    const a = await start();
    await a.value(LISTEN);
    const log = await a.value<string[]>(`
      const own = mx.openEngineStream('cpu'), second = mx.openModelStream('cpu');
      g.names.set(own, 'own').set(second, 'second');
      sync.syncAndClearCache(own, g.lock);
      return g.take();`);
    expect(log).toEqual(['drain own', 'lock syncAndClearCache', 'drain own', 'drain second', 'drain own', 'clear', 'unlock']);
  });

  test('[J104] the wait for the lock is measured, whether it was had or not', async () => {
    const a = await start();
    const counts = await a.value<{ done: number; skipped: number; waitedMs: number; longestWaitMs: number }[]>(`
      const own = mx.openEngineStream('cpu');
      const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
      sync.syncAndClearCache(own, { acquire: () => (sleep(40), true), release: () => {} });
      const first = { ...sync.clearCounts() };
      sync.syncAndClearCache(own, { acquire: () => (sleep(20), false), release: () => { throw new Error('not held'); } });
      return [first, { ...sync.clearCounts() }];`);
    expect(counts.map(({ done, skipped }) => [done, skipped])).toEqual([
      [1, 0],
      [1, 1],
    ]);
    expect(counts[0]!.waitedMs).toBeGreaterThan(30);
    expect(counts[1]!.waitedMs).toBeGreaterThan(counts[0]!.waitedMs + 10);
    expect(counts[1]!.longestWaitMs).toBeLessThan(counts[1]!.waitedMs);
  });
});

describe('streams of one thread', () => {
  test('[J105] the engine’s, a second model’s and the one that a drain without an argument covers are three', async () => {
    const a = await start();
    const found = await a.value<number[]>(`
      const own = mx.newStream('cpu'), second = mx.openModelStream('cpu');
      return [own, second, native.testSynchronizeDefault()].map((s) => mx.streamIndex(s));`);
    expect(new Set(found).size).toBe(3);
  });

  test('[J105] the engine makes its own the default one, so that a call inside MLX that forgets the stream lands there', async () => {
    const a = await start();
    expect(await a.value("const own = mx.openEngineStream('cpu'); return native.testSynchronizeDefault() === own")).toBe(true);
  });

  test('[J105][J108] a second model has a stream of its own; only evaluated arrays cross', async () => {
    const a = await start();
    const found = await a.value<Record<string, unknown>>(`
      const s = mx.openEngineStream('cpu'), second = mx.openModelStream('cpu');
      const target = mx.full([8], 2, 'float32', s);
      mx.evaluate([target]);
      const draft = mx.add(target, 1, second);
      mx.evaluate([draft]);
      const verified = mx.mul(draft, target, s);
      mx.evaluate([verified]);
      const apart = mx.foreignStreamOps();
      mx.add(mx.exp(target, s), 1, second);
      const crossed = mx.foreignStreamOps() - apart;
      mx.exp(target, mx.newStream('cpu'));
      return { apart, crossed, foreign: mx.foreignStreamOps() - apart - crossed, value: mx.toFloat32Array(verified)[0] };`);
    expect(found).toEqual({ apart: 0, crossed: 1, foreign: 1, value: 6 });
  });
});

/** Long enough that a thread which is kept waiting for its turn on a busy machine makes no difference. */
const WORK_MS = 800;

describe('in flight between the drain and the clear', () => {
  const rounds = (clear: string) => `
    const own = mx.newStream('cpu');
    mx.setEngineStream(own);
    native.testWatchClears(own);
    for (let i = 0; i < 3; i++) {
      const t = g.queue(own, ${WORK_MS});
      ${clear}
      mx.release(t);
    }
    return native.testInFlightAtClears();`;

  test('[J106] nothing, of what was queued on the stream that it was given', async () => {
    const a = await start();
    await a.value(LISTEN);
    const left = await a.value<number[]>(rounds('sync.syncAndClearCache(own, g.lock);'));
    expect(left).toHaveLength(3);
    expect([...left].sort((x, y) => x - y)[1]).toBeLessThan(WORK_MS / 100);
    expect(Math.max(...left)).toBeLessThan(WORK_MS / 10);
  });

  test('[J106] about all of it, when another stream is drained: the hook would show a wrong drain', async () => {
    const a = await start();
    await a.value(LISTEN);
    const left = await a.value<number[]>(rounds('native.testSynchronizeDefault(); native.clearCache();'));
    expect(left).toHaveLength(3);
    expect(Math.min(...left)).toBeGreaterThan(WORK_MS * 0.9);
  });

  test('[J106][J108] nothing of the other model’s either, whichever stream is given', async () => {
    const a = await start();
    await a.value(LISTEN);
    const left = await a.value<number[]>(`
      const own = mx.openEngineStream('cpu'), second = mx.openModelStream('cpu');
      const t = g.queue(second, ${WORK_MS});
      native.testWatchClears(second);
      sync.syncAndClearCache(own, g.lock);
      const u = g.queue(own, ${WORK_MS});
      native.testWatchClears(own);
      sync.syncAndClearCache(second, g.lock);
      return native.testInFlightAtClears();`);
    expect(left).toHaveLength(2);
    expect(Math.max(...left)).toBeLessThan(WORK_MS / 10);
  });
});

describe('a stream that fails', () => {
  test.each([
    ['the given one, while it is drained', 'own', ['drain own']],
    ['the default one', 'byDefault', ['drain own', 'lock syncAndClearCache', 'drain own', 'drain other', 'drain default', 'unlock']],
    ['another one', 'other', ['drain own', 'lock syncAndClearCache', 'drain own', 'drain other', 'unlock']],
  ])('[J111] %s: the error is thrown, nothing is cleared, and the next clear works', async (_, failing, log) => {
    const a = await start();
    await a.value(LISTEN);
    const found = await a.value<Record<string, unknown>>(`
      const own = mx.newStream('cpu'), other = mx.newStream('cpu');
      mx.setEngineStream(own);
      const byDefault = mx.defaultStream('cpu');
      g.names.set(own, 'own').set(other, 'other').set(byDefault, 'default');
      const s = { own, other, byDefault }.${failing};
      mx.asyncEvaluate([native.testFailOnStream(mx.zeros([1], 'float32', s), s)]);
      const code = g.code(() => sync.syncAndClearCache(own, g.lock));
      const log = g.take();
      return { code, log, after: sync.syncAndClearCache(own, g.lock), counts: sync.clearCounts().done };`);
    expect(found).toEqual({ code: 'MLX_ERROR', log, after: true, counts: 1 });
  });

  test('[J111] because the device refuses further work: DEVICE_LOST, and nothing is cleared', async () => {
    const a = await start();
    await a.value(LISTEN);
    const found = await a.value<Record<string, unknown>>(`
      const own = mx.openEngineStream('cpu');
      const { synchronize } = native;
      native.synchronize = () => native.testThrow('Command buffer execution failed: Ignored (for causing prior/excessive GPU errors)');
      const code = g.code(() => sync.syncAndClearCache(own, g.lock));
      return { code, log: g.take(), done: sync.clearCounts().done };`);
    expect(found).toEqual({ code: 'DEVICE_LOST', log: [], done: 0 });
  });
});

describe('the end of a thread', () => {
  test('[J112] all its streams are drained, then cleared', async () => {
    const a = await start();
    await a.value(LISTEN);
    const found = await a.value<Record<string, unknown>>(`
      const own = mx.openEngineStream('cpu'), other = mx.newStream('cpu');
      g.names.set(own, 'own').set(other, 'other');
      native.clearStreams = ((clear) => () => { g.inFlight = [own, other].map((s) => native.testInFlight(s)); clear(); })(native.clearStreams);
      g.queue(other, ${WORK_MS});
      sync.clearThreadStreams();
      return { log: g.take(), busy: g.inFlight.some((ms) => ms > ${WORK_MS / 10}), live: mx.liveStreams().length };`);
    expect(found).toEqual({ log: ['drain own', 'drain other', 'clear streams'], busy: false, live: 0 });
  });

  test('[J112] also when one of them fails: the error is thrown when all are gone', async () => {
    const a = await start();
    await a.value(LISTEN);
    const found = await a.value<Record<string, unknown>>(`
      const own = mx.openEngineStream('cpu'), other = mx.newStream('cpu');
      g.names.set(own, 'own').set(other, 'other');
      mx.asyncEvaluate([native.testFailOnStream(mx.zeros([1], 'float32', own), own)]);
      return { code: g.code(() => sync.clearThreadStreams()), log: g.take(), live: mx.liveStreams().length };`);
    expect(found).toEqual({ code: 'MLX_ERROR', log: ['drain own', 'drain other', 'clear streams'], live: 0 });
  });
});
