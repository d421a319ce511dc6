/**
 * `bufferAccess`, the lock between whoever copies bytes out of MLX buffers and the clear of the allocator cache.
 * Must not happen: a clear under a reader, a clear that waits for a whole store job, a store job and an engine that wait for each
 * other. Nobody but the clear takes the lock in this version (bytes are copied on the engine thread), so the other side is a double.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { createProcessShared, processLocks } from '../../dist/shared/process-shared.js';
import { diagnose, ThreadTable } from '../../dist/sync.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { ROOT } from '../helpers/paths.ts';
import { startWorker } from '../helpers/worker.ts';
import { until } from './fixture.ts';

watchLeaks({ nativeThreads: 4 });

const WORD = { violations: 1, stop: 2, giveUp: 5 };

class Scene {
  readonly shared = createProcessShared();
  readonly table = new ThreadTable(this.shared.threads);
  readonly words = new Int32Array(new SharedArrayBuffer(8 * 4));

  start<T>(scenario: string, kind: string, args: Record<string, unknown> = {}): { result: Promise<T>; said(text: string): Promise<void>; worker: Worker } {
    const { shared, words } = this;
    const worker = startWorker(new URL('./buffer-lock-worker.mjs', import.meta.url), {
      workerData: { shared, words, scenario, kind, name: kind, args },
      timeoutMs: 50_000,
    });
    const said = new Set<string>();
    const result = new Promise<T>((resolve, reject) => {
      worker.on('message', (message: string | { result: T }) => (typeof message === 'string' ? said.add(message) : resolve(message.result)));
      worker.once('error', reject);
      worker.once('exit', (code) => reject(new Error(`${scenario} ended with ${code} and no result`)));
    });
    result.catch(() => undefined);
    return { result, worker, said: (text) => until(() => said.has(text), `${kind} says ${text}`) };
  }

  set(word: number): void {
    Atomics.store(this.words, word, 1);
    Atomics.notify(this.words, word);
  }

  slotOf(kind: string): number {
    return this.table.list().find((thread) => thread.kind === kind)!.slot;
  }

  diagnose() {
    return diagnose(this.table, [processLocks(this.shared)]);
  }
}

describe('bufferAccess', () => {
  it('[I96] a reader on another thread and 10,000 clears exclude each other; it is one lock for the process, and reentrant', async () => {
    const scene = new Scene();
    const reader = scene.start<{ rounds: number; wrong: number }>('reads', 'store-worker');
    const engine = scene.start<{ done: number; skipped: number }>('clears', 'engine', { rounds: 10_000 });
    expect(await engine.result).toEqual({ done: 10_000, skipped: 0 });
    const { rounds, wrong } = await reader.result;
    expect(wrong).toBe(0);
    expect(rounds).toBeGreaterThan(10);
    expect(scene.words[WORD.violations]).toBe(0);
    expect(processLocks(scene.shared).readAll(scene.table)).toMatchObject([{ name: 'bufferAccess', kind: 'reentrant', held: false, depth: 0, timeouts: 0 }]);
  });

  it('[I97] whoever has waited for it during a copy in slices of 8 MiB has it when the slice under way ends', async () => {
    const scene = new Scene();
    const engine = scene.start<number>('wants', 'engine', { again: true });
    const copy = scene.start<number>('copies', 'store-worker', { slices: 40 });
    expect(await copy.result).toBe(0);
    await engine.result;
  });

  it('[I97] the same copy with the lock held over all of it keeps the other out to its end', async () => {
    const scene = new Scene();
    const engine = scene.start<number>('wants', 'engine');
    const copy = scene.start<number>('wholeCopy', 'store-worker', { slices: 20 });
    expect(await copy.result).toBe(0);
    expect(await engine.result).toBe(20);
  });

  it('[I97] the product takes it in two places only, for a clear and for a slice of a lease; the clear waits under it for its own streams at most', () => {
    const users = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts'))
      .filter((name) => /bufferAccess\b[^;\n]*\.acquire\(|bufferAccess\.acquire/.test(readFileSync(join(ROOT, 'src', name), 'utf8')));
    expect(users.sort()).toEqual(['engine-thread/mlx/metal-sync.ts', 'shared/session/leases.ts']);
  });
});

describe('a store job at work while the engine’s stream cannot finish before the engine thread goes on', () => {
  async function meet(order: 'naive' | 'ours', patient: boolean) {
    const scene = new Scene();
    const engine = scene.start<{ cleared: boolean; done: number; skipped: number }>('stuckStream', 'engine', { patient });
    await engine.said('ready');
    const job = scene.start<{ streamDone: boolean; gaveUp: boolean }>('job', 'store-worker', { order, engineSlot: scene.slotOf('engine') });
    await job.said('holds');
    return { scene, engine, job };
  }

  it('[I98] the naive order, the lock held over a wait for the engine’s stream, deadlocks, and diagnose() names the cycle', async () => {
    const { scene, engine, job } = await meet('naive', true);
    scene.set(WORD.stop);
    await until(() => scene.diagnose().cycles.length > 0, 'a cycle');
    const { cycles, text } = scene.diagnose();
    expect(cycles).toHaveLength(1);
    expect(cycles[0]).toMatch(/engine waits for lock bufferAccess \(at syncAndClearCache\), held at store job by store-worker/);
    expect(cycles[0]).toMatch(/store-worker waits for stream stream of the engine of engine/);
    expect(text).toContain('these threads wait for each other');
    // It stays so until somebody gives up.
    expect(scene.diagnose().cycles).toHaveLength(1);
    scene.set(WORD.giveUp);
    expect(await job.result).toEqual({ streamDone: false, gaveUp: true });
    expect(await engine.result).toMatchObject({ cleared: true });
  });

  it('[I98] ours, nothing waited for under the lock: both come through and no cycle is seen', async () => {
    const { scene, engine, job } = await meet('ours', true);
    scene.set(WORD.stop);
    expect(await engine.result).toEqual({ cleared: true, done: 1, skipped: 0 });
    expect(await job.result).toEqual({ streamDone: true, gaveUp: false });
    expect(scene.diagnose().cycles).toEqual([]);
  });

  it('[I98] against a naive job the clear has its limit: it is skipped, counted, and both go on', async () => {
    const { scene, engine, job } = await meet('naive', false);
    scene.set(WORD.stop);
    expect(await engine.result).toEqual({ cleared: false, done: 0, skipped: 1 });
    expect(await job.result).toEqual({ streamDone: true, gaveUp: false });
  });
});
