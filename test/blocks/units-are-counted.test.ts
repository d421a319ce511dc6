// When a block counts as stored, and what bounds the units that wait. Must not happen: `durable` said before the rename and the
// folder's sync, a unit lost at close, bytes of a stored block that stay in memory.
import { describe, expect, it } from 'vitest';
import { publishBlock, unitsInFlight } from '../../src/engine-thread/boundary/publish.ts';
import type { FileOperation } from '../../src/shared/files.ts';
import { DEFAULT_LIMITS, sumOfStates } from '../../src/shared/session/index.ts';
import { chainSpecs, kvLayers } from './fixtures.ts';
import { BLOCK, Harness, tokensOf } from './harness.ts';

/** Keys and values only: a unit that is its own boundary. */
const rows = (count: number, width = 4) =>
  chainSpecs(tokensOf(count * BLOCK), BLOCK).map(({ kv }) => ({ ...kv, layers: kvLayers(kv.end, kv.start, kv.end, width).slice(1) }));

describe('counters', () => {
  it('[G81] a queued unit is captured and pending; durable only after the rename and the sync of its folder', () => {
    const seen: string[] = [];
    let harness: Harness | null = null;
    const look = (operation: FileOperation, path: string) => {
      if (harness === null || !path.includes('/blocks/') || !['rename', 'syncFolder'].includes(operation)) return;
      const { captured, pending, durable } = harness.session.ledger.read();
      seen.push(`${operation}: ${captured} captured, ${pending} pending, ${durable} durable`);
    };
    harness = new Harness({ hooks: { before: look, after: look } });
    const [only] = rows(1);
    expect(publishBlock(harness.session, harness.unitOf(only!, 'r', false))).toBe('queued');
    expect(harness.session.ledger.read()).toMatchObject({ captured: 1, pending: 1, durable: 0 });
    harness.drain();
    expect(new Set(seen)).toEqual(new Set(['rename: 1 captured, 1 pending, 0 durable', 'syncFolder: 1 captured, 1 pending, 0 durable']));
    expect(harness.session.ledger.read()).toMatchObject({ captured: 1, pending: 0, durable: 1 });
  });

  it('[D58] an error of the sync of a block’s folder: the boundary has failed, is not durable, and no file of it stays', () => {
    let broken = true;
    const fail = (operation: FileOperation, path: string) => {
      if (broken && operation === 'syncFolder' && /blocks.[0-9a-f]{2}$/.test(path)) throw Object.assign(new Error('EIO: made up'), { code: 'EIO' });
    };
    const harness = new Harness({ hooks: { before: fail } });
    const [only] = rows(1);
    publishBlock(harness.session, harness.unitOf(only!, 'r', false));
    harness.drain();
    expect(harness.of('failed')).toMatchObject([{ errno: 'EIO' }]);
    expect(harness.of('durable')).toEqual([]);
    expect(harness.session.ledger.read()).toMatchObject({ captured: 1, failed: 1, durable: 0 });
    expect(harness.tree()).toEqual([]);
    broken = false;
    publishBlock(harness.session, harness.unitOf(only!, 'again', false));
    harness.drain();
    expect(harness.of('durable')).toHaveLength(1);
  });

  it('[G82] a stop that drains stores every queued unit first, and none is left uncounted', () => {
    const harness = new Harness();
    for (const spec of rows(12)) publishBlock(harness.session, harness.unitOf(spec, 'r', false));
    expect(unitsInFlight(harness.session)).toBe(12);
    harness.drain();
    expect(unitsInFlight(harness.session)).toBe(0);
    const figures = harness.session.ledger.read();
    expect(figures).toMatchObject({ captured: 12, durable: 12, failed: 0, pending: 0 });
    expect(sumOfStates(figures)).toBe(12);
    expect(harness.tree()).toHaveLength(12);
  });

  it('[G80] a full disk is named, what follows is written, and the free-space figure is asked for again', () => {
    let full = true;
    let probes = 0;
    const fail = (operation: FileOperation, path: string) => {
      if (!full || operation !== 'pwrite' || !path.includes('/blocks/')) return;
      full = false;
      throw Object.assign(new Error('ENOSPC: made up'), { code: 'ENOSPC' });
    };
    const free = () => {
      probes += 1;
      return 2 ** 40;
    };
    const harness = new Harness({ hooks: { before: fail }, freeBytes: free, probeTtlMs: 1e9 });
    // Of one chain each: the second does not hang on the first, which is lost.
    const specs = [1, 2, 3].map((seed) => chainSpecs(tokensOf(BLOCK, seed), BLOCK)[0]!.kv).map((kv) => ({ ...kv, layers: kv.layers.slice(1) }));
    const probesAt: number[] = [];
    for (const spec of specs) publishBlock(harness.session, harness.unitOf(spec, 'r', false));
    harness.drain((store) => {
      const { effectiveLimit } = store.space;
      store.space.effectiveLimit = () => {
        const limit = effectiveLimit.call(store.space);
        probesAt.push(probes);
        return limit;
      };
    });
    expect(harness.of('degraded')).toMatchObject([{ code: 'CACHE_FULL', details: { errno: 'ENOSPC' } }]);
    expect(harness.of('failed')).toMatchObject([{ errno: 'ENOSPC' }]);
    expect(harness.of('durable')).toHaveLength(2);
    expect(harness.of('recovered')).toHaveLength(1);
    // Asked at start; then, although its answer would have held, once more before the second unit.
    expect(probesAt[0]! + 1).toBe(probesAt.at(-1));
  });
});

describe('what bounds the units that wait', () => {
  it('[G77] their number and, whatever the block size, their bytes: a unit that would exceed the cap is refused at once', () => {
    expect(DEFAULT_LIMITS).toMatchObject({ unitCapacity: 64, pendingMaxBytes: 512 * 1024 * 1024 });
    for (const [width, fits] of [
      [64, 8], // 8 KiB a unit: as many as there are places
      [8192, 3], // 1 MiB and a header: 4 MiB hold 3
    ] as const) {
      const harness = new Harness({ unitCapacity: 8 });
      const outcomes = rows(fits + 1, width).map((spec) => publishBlock(harness.session, harness.unitOf(spec, 'r', false)));
      expect(outcomes).toEqual([...Array(fits).fill('queued'), 'backpressure']);
      expect(harness.session.pending.held).toBeLessThanOrEqual(4 << 20);
      harness.drain();
      expect(harness.session.pending.held).toBe(0);
    }
  });

  it('[G84] no tier in memory: once stored, nothing of a block is held, and a restore reads its files', () => {
    const reads: string[] = [];
    const harness = new Harness({ hooks: { before: (operation, path) => void (operation === 'pread' && path.includes('/blocks/') && reads.push(path)) } });
    const tokens = tokensOf(3 * BLOCK);
    harness.submitChain(tokens, 'a');
    harness.drain();
    expect(harness.session.pending.held).toBe(0);
    expect(harness.session.pages.inUse).toBe(0);
    expect(harness.session.items.findVisible(new Int32Array(8), 1)).toBe(-1);
    reads.length = 0;
    for (const times of [1, 2]) {
      expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 48 });
      expect(new Set(reads).size).toBe(4); // three of keys and values, one state
      expect(reads.length).toBeGreaterThanOrEqual(4 * times);
    }
  });
});
