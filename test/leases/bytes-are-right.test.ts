/**
 * Leases under what an engine does at the same time, and with threads that die. Must not happen: a wrong byte, a crash, an array that is held for
 * ever, a reader that waits for an engine that is gone.
 */
import type { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { ThreadTable } from '../../dist/sync.js';
import { until } from '../helpers/engines.ts';
import { exitOf, startWorker } from '../helpers/worker.ts';
import { Thread } from '../native/fixtures/thread.ts';

const long = process.env.TIDEMARK_LONG === '1';
const MB = 1 << 20;

class Scene {
  readonly shared = createProcessShared();
  readonly words = new Int32Array(new SharedArrayBuffer(4 * 4));
  readonly arena = new SharedArrayBuffer(64 * MB);

  start<T>(scenario: string, kind: string, args: Record<string, unknown>): { result: Promise<T>; said(text: string): Promise<void>; worker: Worker } {
    const { shared, words, arena } = this;
    const worker = startWorker(new URL('./lease-worker.mjs', import.meta.url), {
      workerData: { shared, words, arena, scenario, kind, args },
      timeoutMs: long ? 500_000 : 55_000,
    });
    const said = new Set<string>();
    const result = new Promise<T>((resolve, reject) => {
      worker.on('message', (message: string | { result: T }) => (typeof message === 'string' ? said.add(message) : resolve(message.result)));
      worker.once('error', reject);
      worker.once('exit', (code) => reject(new Error(`${scenario} ended with ${code} and no result`)));
    });
    result.catch(() => undefined);
    return { result, worker, said: (text) => until(`${kind} says ${text}`, () => said.has(text)) };
  }

  stop(): void {
    Atomics.store(this.words, 3, 1);
    Atomics.notify(this.words, 3);
  }

  /** Ends a thread where it is; its death word is written by its own end. */
  async kill(worker: Worker, kind: string): Promise<void> {
    const ended = exitOf(worker);
    await worker.terminate();
    await ended;
    const table = new ThreadTable(this.shared.threads);
    for (const thread of table.list()) if (thread.kind === kind) table.markDead(thread.slot);
  }
}

describe('another thread copies while the engine goes on', () => {
  test.each([
    { name: 'small arrays in one slice', elements: 4_096, rounds: long ? 10_000 : 1_000, sliceBytes: 8 * MB },
    { name: 'slices that end inside of arrays', elements: 100_003, rounds: long ? 1_000 : 100, sliceBytes: 300_000 },
  ])('[I96][I97] $name: it evaluates, clears and drops handles, and every byte is right', async ({ elements, rounds, sliceBytes }) => {
    const scene = new Scene();
    const reader = scene.start('copies', 'store-worker', { elements, rounds, sliceBytes });
    const engine = scene.start<{ clears: number; skipped: number; leases: number }>('gives', 'engine', { elements, rounds });
    const { clears, ...rest } = await engine.result;
    expect(rest).toEqual({ skipped: 0, leases: 0 });
    expect(clears).toBe(Math.floor(rounds / 2) + Math.floor(rounds / 3));
    expect(await reader.result).toEqual({ rounds, wrong: 0 });
  });
});

describe('a thread dies in the middle of a lease', () => {
  const elements = 4 * MB;

  test.each([false, true])('[I96] the reader (holding bufferAccess: %s): another one goes on where it was, the engine drops the array', async (holding) => {
    const scene = new Scene();
    const engine = scene.start<{ before: number; after: number }>('stays', 'engine', { elements });
    await engine.said('given');
    const reader = scene.start<number>('halfway', 'store-worker', { bytes: 5 * MB, holding });
    await reader.said('halfway');
    await scene.kill(reader.worker, 'store-worker');
    const next = scene.start<{ outcome: string; right: boolean }>('finishes', 'snapshot-writer', { elements });
    // bufferAccess guards no data of ours: from a dead owner it is taken over.
    expect(await next.result).toMatchObject({ outcome: 'whole', right: true });
    scene.stop();
    expect(await engine.result).toEqual({ before: 1, after: 0 });
  });

  test('[I96] the engine: the reader is told that the lease is gone, and nothing is held any more', async () => {
    const scene = new Scene();
    const engine = scene.start('stays', 'engine', { elements });
    await engine.said('given');
    const reader = scene.start<number>('halfway', 'store-worker', { bytes: 5 * MB, holding: false });
    await reader.said('halfway');
    await scene.kill(engine.worker, 'engine');
    const next = scene.start<{ outcome: string; right: boolean; leases: number }>('finishes', 'snapshot-writer', { elements });
    expect(await next.result).toEqual({ outcome: 'LEASE_GONE', right: false, leases: 0 });
    scene.stop();
    expect(await reader.result).toBe(elements * 4 - 5 * MB);
  });
});

/** The owner of leases, and a reader beside it. */
async function pair(): Promise<[owner: Thread, reader: Thread]> {
  const arena = new SharedArrayBuffer(MB);
  const [owner, reader] = [await Thread.start({ mlx: true, arena }), await Thread.start({ mlx: true, arena })];
  for (const thread of [owner, reader])
    await thread.value('g.arena = new Uint8Array(g.data.arena); g.code = (fn) => { try { return fn(); } catch (error) { return error.code; } };');
  await owner.value(`
    g.s = mx.openEngineStream('cpu');
    g.lease = (...pieces) => native.leaseOpen(new Uint8Array(Float64Array.from(pieces.flat()).buffer), g.arena);
    g.ints = (n) => mx.fromInts(Int32Array.from({ length: n }, (_, i) => i), [n]);`);
  return [owner, reader];
}

describe('a lease', () => {
  test('[I94] is given of arrays that are computed, lie in rows and fit the target, and of no others', async () => {
    const [owner] = await pair();
    const codes = await owner.value<unknown[]>(`
      const lazy = mx.zeros([4], 'float32', g.s);
      const t = g.ints(16);
      const turned = mx.transpose(mx.reshape(t, [4, 4], g.s), null, g.s);
      mx.evaluate([turned]);
      const slow = native.testDelay(mx.full([4], 1, 'float32', g.s), 200, g.s);
      mx.asyncEvaluate([slow]);
      const failed = native.testFailOnStream(mx.full([4], 1, 'float32', g.s), g.s);
      const pieces = [[lazy, 0, 16, 0], [slow, 0, 16, 0], [turned, 0, 64, 0], [t, 0, 65, 0], [t, 4, 64, 0], [t, 0, 64, ${MB} - 60], [t, -1, 4, 0], [t, 0, 1.5, 0]];
      const codes = pieces.map((p) => g.code(() => g.lease(p)));
      mx.wait(slow);
      g.code(() => mx.evaluate([failed]));
      return [...codes, g.code(() => g.lease([failed, 0, 16, 0])), native.leaseCount()];`);
    expect(codes).toEqual([...new Array(8).fill('INVALID_ARGUMENT'), 'TENSOR_POISONED', 0]);
  });

  test('[I96] outlives the handles, is copied in slices by any thread, and dropped by its owner alone, once', async () => {
    const [owner, reader] = await pair();
    const lease = await owner.value<number>('const t = g.ints(8); g.given = g.lease([t, 4, 8, 100]); mx.release(t); return g.given');
    const copy = (most: number) => `native.leaseCopy(${lease}, g.arena, ${most})`;
    expect(await reader.value(`return [${copy(3)}, ${copy(100)}, ${copy(100)}]`)).toEqual([5, 0, 0]);
    expect(await reader.value('return [...new Int32Array(g.arena.buffer, 100, 2)]')).toEqual([1, 2]);
    expect(await reader.value(`return g.code(() => native.leaseDrop(${lease}))`)).toBe('INVALID_ARGUMENT');
    expect(await owner.value('return [native.leaseDrop(g.given), native.leaseDrop(g.given), native.leaseCount()]')).toEqual([true, false, 0]);
    expect(await reader.value(`return g.code(() => ${copy(1)})`)).toBe('LEASE_GONE');
    const bad = await reader.value('return [0, -1, 2 ** 31, NaN].map((id) => g.code(() => native.leaseCopy(id, g.arena, 1)))');
    expect(bad).toEqual(new Array(4).fill('INVALID_ARGUMENT'));
  });

  test('keeps an update from being made in place: of a cache that goes on growing there is none', async () => {
    const [owner] = await pair();
    const moved = await owner.value<boolean[]>(`
      const update = (leased) => {
        const cache = mx.zeros([1024], 'float32', g.s);
        mx.evaluate([cache]);
        const id = leased ? g.lease([cache, 0, 4096, 0]) : 0;
        const before = mx.bufferAddress(cache);
        const next = mx.sliceUpdate(cache, mx.full([1], 1, 'float32', g.s), [3], [4], null, g.s);
        mx.release(cache);
        mx.evaluate([next]);
        const moved = mx.bufferAddress(next) !== before;
        if (leased) native.leaseDrop(id);
        return moved;
      };
      return [update(false), update(true)];`);
    expect(moved).toEqual([false, true]);
  });
});
