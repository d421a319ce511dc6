/**
 * When the cap stays reached or the queue is full: written while the caller waits, within a limit, or dropped.
 * Must not happen: a true answer without a file, a wait beyond the limits, a file of an abandoned save.
 */
import { existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { ITEM, STATE } from '../../dist/shared/session/item-table.js';
import type { OverflowPolicy } from '../../dist/shared/session/limits.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { pathOf, type StoreFixture, startStore, until } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { Gate } from './gate.mjs';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fillOf, fromLayers, toLayers } from './layers.mjs';

watchLeaks();

const policies: OverflowPolicy[] = ['write-through', 'inline'];

function expressState(f: StoreFixture): number {
  return f.session.items.get(f.session.layout.expressItem, ITEM.state);
}

/** Fills a queue of two: one item held by the writer at its rename, one behind it. */
async function fullQueue(limits: object): Promise<StoreFixture> {
  const f = await startStore({ queueCapacity: 2, reserveWaitMs: 60_000, ...limits });
  f.gate.hold('rename');
  f.store.save('a', 1, toLayers(block(1)));
  await f.gate.arrived('rename');
  f.store.save('a', 2, toLayers(block(2)));
  return f;
}

describe('overflow', () => {
  it.each(policies)('[C41] with the cap reached for longer than the wait, %s answers true when the file is on disk', async (overflow) => {
    const f = await startStore({ overflow, reserveWaitMs: 20, inlineWriteLimitMs: 10_000 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    expect(f.store.save('r', 1024, toLayers(block(8, 2000)))).toEqual({ ok: true, how: 'written' });
    expect(existsSync(pathOf(f, 'r', 1024))).toBe(true);
    expect(f.store.has('r', 1024)).toBe(true);
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(8);
    expect(f.session.pending.held).toBe(1024 * 1024);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, written: 1 });
    others.release();
    await f.settled();
    await f.close();
  });

  it('[C41] drop gives up after the wait and counts backpressure', async () => {
    const f = await startStore({ overflow: 'drop', reserveWaitMs: 20 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    expect(f.store.save('r', 1024, toLayers(block(8, 2000)))).toMatchObject({ ok: false, reason: 'backpressure' });
    expect(f.session.pending.backpressureMs).toBeGreaterThanOrEqual(19);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, dropped: { backpressure: 1 } });
    others.release();
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[C41] the waits for the express item and for room have one limit together', async () => {
    const f = await startStore({ overflow: 'drop', reserveWaitMs: 100 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    const given: number[] = [];
    const { waitFor } = f.session.pending;
    f.session.pending.waitFor = (done, timeoutMs) => {
      given.push(timeoutMs);
      // The first wait takes a while, as it does when an earlier save is still being written through.
      if (given.length === 1) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 30);
      return waitFor.call(f.session.pending, done, timeoutMs);
    };
    expect(f.store.save('r', 1024, toLayers(block(8, 2000)))).toMatchObject({ ok: false, reason: 'backpressure' });
    expect(given).toHaveLength(2);
    expect(given[1]).toBeLessThanOrEqual(given[0]! - 29);
    others.release();
    await f.settled();
    await f.close();
  });

  it('[C42] a full queue is written through at once, without the reservation wait', async () => {
    const f = await fullQueue({ overflow: 'write-through', inlineWriteLimitMs: 10_000 });
    const engine = await f.actor('engine', 'engine');
    const held = f.session.pending.held;
    const third = engine.call('save', 'a', 3, block(3));
    await until(() => expressState(f) === STATE.queued, 'in the express slot');
    expect(f.session.pending.held).toBe(held);
    expect(f.store.has('a', 3)).toBe(true);
    expect(fillOf(fromLayers(f.store.load('a', 3).layers))).toBe(3);
    f.gate.release('rename');
    expect(await third).toEqual({ ok: true, how: 'written' });
    await f.settled();
    await f.told();
    // Express goes before the queue.
    expect(f.events.filter(({ type }) => type === 'written').map(({ tokenCount }) => tokenCount)).toEqual([1, 3, 2]);
    expect(f.session.registry.live).toBe(3);
    f.store.cleanupRequest('a');
    expect(f.files()).toEqual([]);
    expect(f.store.cancelledCount('a')).toBe(0);
    await f.close();
  });

  it('[C42] a full queue is written inline, under writerBusy; the item is visible to load and counts nothing against the cap', async () => {
    const f = await fullQueue({ overflow: 'inline', inlineWriteLimitMs: 10_000 });
    const own = new Gate();
    own.hold('rename');
    const engine = await f.actor('engine', 'engine', { gate: own });
    const held = f.session.pending.held;
    const third = engine.call('save', 'a', 3, block(3));
    await f.waiting('engine', 'writerBusy');
    expect(f.session.pending.held).toBe(held);
    f.gate.release('rename');
    await own.arrived('rename');
    expect(f.store.has('a', 3)).toBe(true);
    expect(fillOf(fromLayers(f.store.load('a', 3).layers))).toBe(3);
    expect(f.session.readLocks(f.session.self.table).find(({ name }) => name === 'writerBusy')).toMatchObject({
      held: true,
      owner: 'engine',
      site: 'save.inline',
    });
    own.release('rename');
    expect(await third).toEqual({ ok: true, how: 'written' });
    await f.settled();
    f.store.cleanupRequest('a');
    expect(f.files()).toEqual([]);
    expect(f.store.cancelledCount('a')).toBe(0);
    await f.close();
  });

  it.each(policies)('[C49] %s gives up at its limit while the writer sits in one system call; nothing of it appears later', async (overflow) => {
    const f = await startStore({ overflow, pendingMaxBytes: 20_000, reserveWaitMs: 20, inlineWriteLimitMs: 40 });
    f.gate.hold('fsync');
    f.store.save('r', 1024, toLayers(block(1, 15_000)));
    await f.gate.arrived('fsync');
    expect(f.store.save('r', 2048, toLayers(block(2, 15_000)))).toMatchObject({ ok: false, reason: 'backpressure' });
    expect(f.store.has('r', 2048)).toBe(false);
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, pending: 1, dropped: { backpressure: 1 } });
    f.gate.release('fsync');
    await f.settled();
    expect(existsSync(pathOf(f, 'r', 2048))).toBe(false);
    expect(existsSync(pathOf(f, 'r', 1024))).toBe(true);
    await f.close();
  });

  it('[C49] a write-through that the writer has begun is abandoned at the limit; the writer removes its temporary file', async () => {
    const f = await startStore({ reserveWaitMs: 10, inlineWriteLimitMs: 1000 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    f.gate.hold('fsync');
    expect(f.store.save('r', 1024, toLayers(block(1)))).toMatchObject({ ok: false, reason: 'backpressure' });
    await f.gate.arrived('fsync');
    f.gate.release('fsync');
    others.release();
    await f.settled();
    expect(f.files()).toEqual([]);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, written: 0, dropped: { backpressure: 1 } });
    expect(f.store.save('r', 1024, toLayers(block(2)))).toEqual({ ok: true, how: 'queued' });
    await f.settled();
    await f.close();
  });

  it('[C49] once the rename has begun the writer ends it: false to the saver, and the ledger says what became of it', async () => {
    const f = await startStore({ reserveWaitMs: 10, inlineWriteLimitMs: 1000, publishGraceMs: 10 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    f.gate.hold('rename');
    expect(f.store.save('r', 1024, toLayers(block(1)))).toMatchObject({ ok: false, reason: 'backpressure' });
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, pending: 1 });
    f.gate.release('rename');
    others.release();
    await f.settled();
    expect(f.store.has('r', 1024)).toBe(true);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, written: 1 });
    await f.close();
  });

  it('[C49] an inline write tests its limit between system calls and removes what it made', async () => {
    const f = await startStore({ overflow: 'inline', reserveWaitMs: 10, inlineWriteLimitMs: 1000 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    const own = new Gate();
    own.hold('create', 'after');
    const engine = await f.actor('engine', 'engine', { gate: own });
    const saving = engine.call('save', 'r', 1024, block(1));
    await own.arrived('create');
    await new Promise((resolve) => setTimeout(resolve, 1020));
    own.release('create');
    expect(await saving).toMatchObject({ ok: false, reason: 'backpressure' });
    others.release();
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('a write-through does not wait for a writer that is dead', async () => {
    const f = await startStore({ reserveWaitMs: 10, inlineWriteLimitMs: 60_000 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    await f.stop();
    const { ThreadTable } = await import('../../dist/shared/sync/thread-table.js');
    const table = new ThreadTable(f.shared.threads);
    for (const { slot, kind } of table.list()) if (kind === 'snapshot-writer') table.markDead(slot);
    expect(f.store.save('r', 1024, toLayers(block(1)))).toMatchObject({ ok: false, reason: 'backpressure' });
    others.release();
    // The next writer finds nothing of it, and serves.
    await f.startWriter(2);
    f.store.save('r', 2048, toLayers(block(2)));
    await f.event('written', 2048);
    await f.settled();
    await f.close();
  });

  it('a save that fails while the caller waits says so with its errno', async () => {
    const f = await startStore({ reserveWaitMs: 10, inlineWriteLimitMs: 10_000 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    f.gate.fail('fsync', 'ENOSPC', 1);
    expect(f.store.save('r', 1024, toLayers(block(1)))).toEqual({ ok: false, reason: 'failed', detail: 'ENOSPC' });
    others.release();
    await f.settled();
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, failed: 1 });
    expect(f.files()).toEqual([]);
    await f.close();
  });
});
