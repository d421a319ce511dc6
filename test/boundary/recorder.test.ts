/**
 * What the engine hands over at a boundary: state of exactly that place, computed, or nothing.
 * Must not happen: live state of another place under the boundary's count, a lazy array that leaves the engine thread, an
 * answer that ends because a boundary could not be captured.
 */
import { existsSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { TINY } from '../helpers/engines.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { dist } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { scenario } from '../models/scenario.ts';

watchLeaks({ nativeThreads: 2 });
// Native code reads the environment of the process, not a Worker's copy of it.
process.env.TIDEMARK_TEST_OPS = '1';

const run = <T>(name: string, data: object = {}) => scenario<T>('../boundary/recorder-scenarios.mjs', name, { dir: TINY, ...data });

describe('boundaries of a model with fixed state, 7 tokens in blocks of 4', () => {
  it('[I95] the boundary is stored for 4 tokens with its state of then, the tail for 7 with its own', async () => {
    expect(await run('tail', { aborted: false })).toEqual({ outline: ['0,4 with state', '4,7 with state'], same: true });
  });

  it('[I95] an aborted answer stores no tail: nothing was captured there', async () => {
    expect(await run('tail', { aborted: true })).toEqual({ outline: ['0,4 with state'], same: true });
  });

  it('[I95] without a capture at the boundary nothing is stored from live state that is further on', async () => {
    expect(await run('passed')).toEqual(['offset']);
  });
});

describe('what is handed over', () => {
  it('[I94] one evaluation covers all of a boundary, and comes before the first byte is taken', async () => {
    const { calls, lazyBefore, lazyAfter, outline } = await run<{ calls: string[]; lazyBefore: number; lazyAfter: number; outline: string[] }>('evaluations');
    expect(calls).toEqual(['evaluate', 'put']);
    expect(lazyBefore).toBeGreaterThan(1);
    expect(lazyAfter).toBe(0);
    expect(outline).toEqual(['0,4 with state']);
  });

  it('[I94] a lazy array is refused where it is handed over, and nothing of it is left; evaluated, it is taken', async () => {
    const { refused, evaluated, ledger } = await run<Record<string, never>>('lazyHandOver', { stagingRoot: join(tempDir('lazy'), '_boundary_snapshots') });
    expect(refused).toEqual({
      saved: { ok: false, reason: 'capture', detail: expect.stringMatching(/evaluate/i) },
      thrown: expect.stringMatching(/^[A-Z_]+$/),
      status: 'unscheduled',
      held: 0,
      units: 0,
      has: false,
    });
    expect(evaluated).toEqual({ ok: true, how: 'queued' });
    expect(ledger).toMatchObject({ captured: 3, pending: 1, dropped: { capture: 1, poisoned: 1 } });
  });

  it('[I94] the store worker reaches no module that calls MLX or knows live caches, but for the copy out of a lease', () => {
    const seen = new Set<string>();
    const visit = (file: string): void => {
      if (seen.has(file)) return;
      seen.add(file);
      for (const [, path] of readFileSync(file, 'utf8').matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)) {
        const target = join(dirname(file), path!);
        if (existsSync(target)) visit(target);
      }
    };
    visit(dist('store-worker/main'));
    expect(seen.size).toBeGreaterThan(20);
    const reached = [...seen].filter((file) => /engine-thread|native-mlx/.test(file)).map((file) => basename(file));
    expect(reached.sort()).toEqual(['binding.js', 'lease-access.js']);
    const access = readFileSync([...seen].find((file) => file.endsWith('lease-access.js'))!, 'utf8');
    expect([...access.matchAll(/mlx\(\)\.(\w+)/g)].map(([, name]) => name)).toEqual(['leaseCopy']);
  });
});

describe('a capture that fails', () => {
  it('[A6] costs its boundary, with a reason and a message; the answer is computed on, bit for bit', async () => {
    const { log, same } = await run<{ log: string[]; same: boolean }>('broken');
    expect(log).toEqual(['capture: no such state', expect.stringMatching(/^capture: .*\w/), '0,4', '4,7']);
    expect(same).toBe(true);
  });
});
