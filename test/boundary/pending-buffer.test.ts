/**
 * Bytes that wait for the disk: the cap, the wait for it, and exact accounting.
 * Must not happen: a byte counted twice or given back twice, more than the cap held, a load that touches a file or keeps others out.
 */
import { describe, expect, it } from 'vitest';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { DEFAULT_LIMITS } from '../../dist/shared/session/limits.js';
import { attachSession, createSessionMemory } from '../../dist/shared/session/session.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { seeded } from '../helpers/seed.ts';
import { StoreFixture, startStore, until } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fillOf, fromLayers, toLayers } from './layers.mjs';

watchLeaks();

/** Payload of a save that takes about `share` of a cap of 1 MiB. */
const part = (value: number, share = 0.6) => block(value, Math.floor(1024 * 1024 * share));

describe('pending buffer', () => {
  it('[C37] defaults: cap 512 MiB, 128 entries, reservation wait 2.0 s', () => {
    expect(DEFAULT_LIMITS).toMatchObject({ pendingMaxBytes: 536_870_912, queueCapacity: 128, reserveWaitMs: 2000, overflow: 'write-through' });
    const memory = createSessionMemory({ stagingRoot: '/nowhere', hub: HubControl.create(), number: 1 });
    expect(memory.limits).toEqual(DEFAULT_LIMITS);
    expect(memory.arena.byteLength).toBeGreaterThanOrEqual(536_870_912 + 128 * 1024 * 1024);
    expect(
      createSessionMemory({ stagingRoot: '/nowhere', hub: HubControl.create(), number: 2, limits: { pendingMaxBytes: 4096 } }).limits.pendingMaxBytes,
    ).toBe(4096);
  });

  it('[C38] a pending entry is loaded without any file operation', async () => {
    const f = new StoreFixture();
    const operations: string[] = [];
    const files = new Files({ before: (operation) => operations.push(operation) });
    const { store } = f.open({}, { files });
    store.save('r', 1024, toLayers(block(4)));
    operations.length = 0;
    expect(fillOf(fromLayers(store.load('r', 1024).layers))).toBe(4);
    expect(store.has('r', 1024)).toBe(true);
    expect(operations).toEqual([]);
    await f.close();
  });

  it('[C39] one snapshot larger than the cap is admitted when nothing is held, and a second one not beside it', async () => {
    const f = await startStore({ pendingMaxBytes: 100 });
    f.gate.hold('rename');
    expect(f.store.save('r', 1024, toLayers(block(1, 4000)))).toEqual({ ok: true, how: 'queued' });
    await f.gate.arrived('rename');
    expect(f.session.pending.held).toBeGreaterThan(4000);
    expect(f.store.save('r', 2048, toLayers(block(2, 4000)), { mayWait: false })).toMatchObject({ ok: false, reason: 'backpressure' });
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(1);
    f.gate.release('rename');
    await f.settled();
    expect(f.store.save('r', 2048, toLayers(block(2, 4000)))).toEqual({ ok: true, how: 'queued' });
    await f.settled();
    expect(fillOf(fromLayers(f.store.load('r', 2048).layers))).toBe(2);
    await f.close();
  });

  it('[C39] an oversize save without a way to hand its buffer over is refused', async () => {
    const f = new StoreFixture();
    const { memory } = f.open({ pendingMaxBytes: 100 });
    const store = new BoundarySnapshotStore(attachSession(memory, f.session.self));
    expect(store.save('r', 1024, toLayers(block(1, 4000)))).toMatchObject({ ok: false, reason: 'oversize' });
    expect(f.session.pending.held).toBe(0);
    await f.close();
  });

  it('[C40] a save that waits for the cap goes on as soon as bytes are given back, and is queued', async () => {
    const f = await startStore({ reserveWaitMs: 10_000 });
    const engine = await f.actor('engine', 'engine');
    f.gate.hold('rename');
    expect(await engine.call('save', 'r', 1024, part(1))).toEqual({ ok: true, how: 'queued' });
    await f.gate.arrived('rename');
    const second = engine.call('save', 'r', 2048, part(2));
    await f.waiting('engine', 'pendingCond');
    f.gate.release('rename');
    expect(await second).toEqual({ ok: true, how: 'queued' });
    // It was woken, and did not find it at the end of a slice.
    expect((await engine.call<string[]>('waits')).at(-1)).toBe('notified');
    await f.settled();
    await f.close();
  });

  it('[C43] time waited for the cap is counted, and without a wait there is none', async () => {
    const f = await startStore({ reserveWaitMs: 30 });
    f.store.save('r', 1024, toLayers(block(1)));
    expect(f.session.pending.backpressureMs).toBe(0);
    await f.settled();
    const held = f.session.pending.tryReserve(1024 * 1024 - 500)!;
    expect(f.session.pending.reserve(1024 * 1024, 30)).toBeNull();
    expect(f.session.pending.backpressureMs).toBeGreaterThanOrEqual(29);
    held.release();
    await f.settled();
    await f.close();
  });

  it('[C44] a second save of the same boundary in flight coalesces: one file, the first value, the same bytes', async () => {
    const f = new StoreFixture();
    const { store, session } = f.open();
    store.save('r', 1024, toLayers(block(1, 5000)));
    const held = session.pending.held;
    expect(store.save('r', 1024, toLayers(block(2, 5000)))).toEqual({ ok: true, how: 'coalesced' });
    expect(session.pending.held).toBe(held);
    await f.startWriter();
    await f.settled();
    expect(f.files().filter((name) => name.endsWith('.safetensors'))).toHaveLength(1);
    expect(fillOf(fromLayers(store.load('r', 1024).layers))).toBe(1);
    expect(session.ledger.read()).toMatchObject({ captured: 1, coalesced: 1, written: 1 });
    await f.close();
  });

  it('[C44] a save after the first was written replaces its file; the first counts as superseded', async () => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    expect(f.store.save('r', 1024, toLayers(block(2)))).toEqual({ ok: true, how: 'queued' });
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(2);
    await f.settled();
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(2);
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, written: 1, superseded: 1 });
    expect(f.session.registry.live).toBe(1);
    await f.close();
  });

  it('[C45] at no moment is a boundary absent from both the pending buffer and the registry', async () => {
    // Limits that no load reaches: an abandoned write-through is meant to go away again.
    const f = await startStore({ queueCapacity: 8, inlineWriteLimitMs: 30_000 });
    const watcher = await f.actor('other', 'watcher');
    const stop = new Int32Array(new SharedArrayBuffer(4));
    const watching = watcher.call<{ gaps: number; looks: number }>('watch', 'r', 100, stop);
    for (let count = 1; count <= 100; count++) expect(f.store.save('r', count, toLayers(block(count % 250))).ok).toBe(true);
    await f.settled();
    Atomics.store(stop, 0, 1);
    const { gaps, looks } = await watching;
    expect(gaps).toBe(0);
    expect(looks).toBeGreaterThan(0);
    await f.close();
  });

  it('[C51] with the writer keeping up a save copies each byte once, straight into pages that were touched before, and makes no buffer', async () => {
    const f = await startStore();
    // Two rounds: what the first one needed is kept warm for the next.
    f.store.save('r', 1, toLayers(block(1, 30_000)));
    await f.settled();
    await until(() => f.session.pages.touchedFree >= 24, 'touched ahead');
    const touched = f.session.underPending('test', () => {
      const { pages } = f.session;
      const count = pages.touchedFree;
      const head = pages.take(count);
      const warm = new Set(pages.chain(head, count));
      pages.give(head, count);
      return warm;
    });
    f.gate.hold('create');
    const layers = toLayers(block(2, 30_000));
    const { copyTo } = layers[0].elements[0];
    const copies: { arena: boolean; page: number; bytes: number }[] = [];
    layers[0].elements[0].copyTo = (target: Uint8Array, from: number) => {
      copies.push({ arena: target.buffer === f.memory.arena, page: Math.floor(target.byteOffset / f.memory.limits.pageBytes), bytes: target.length });
      copyTo(target, from);
    };
    expect(f.store.save('r', 2, layers)).toEqual({ ok: true, how: 'queued' });
    expect(copies.every(({ arena, page }) => arena && touched.has(page))).toBe(true);
    expect(copies.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(30_000);
    expect(f.session.pending.backpressureMs).toBe(0);
    await f.gate.arrived('create');
    f.gate.release('create');
    await f.settled();
    await f.close();
  });

  it('[C46] after any mix of saves, cancels, failures and write-throughs nothing is held, and the peak never fell', async () => {
    const random = seeded('pending mix');
    const f = await startStore({ pendingMaxBytes: 40_000, queueCapacity: 4, reserveWaitMs: 2, inlineWriteLimitMs: 50 });
    let peak = 0;
    for (let round = 0; round < 150; round++) {
      const id = `r${random.integer(0, 3)}`;
      switch (random.integer(0, 5)) {
        case 0:
          f.store.cleanupRequest(id);
          break;
        case 1:
          f.gate.fail(random.pick(['create', 'pwrite', 'fsync', 'rename']), random.pick(['ENOSPC', 'EIO']), 1);
          break;
        case 2:
          f.session.pending.tryReserve(random.integer(1, 30_000))?.release();
          break;
        default:
          f.store.save(id, random.integer(1, 20), toLayers(block(1, random.integer(1, 30_000))));
      }
      expect(f.session.pending.peak).toBeGreaterThanOrEqual(peak);
      peak = f.session.pending.peak;
      expect(f.session.pending.held).toBeLessThanOrEqual(40_000);
    }
    for (const operation of ['create', 'pwrite', 'fsync', 'rename']) f.gate.heal(operation);
    await f.settled();
    await f.close();
  });

  it('[C46] a reservation is given back once, whether it is used, released or both', async () => {
    const f = new StoreFixture();
    const { store, session } = f.open();
    const reservation = session.pending.reserve(50_000)!;
    expect(session.pending.held).toBe(50_000);
    expect(store.save('r', 1024, toLayers(block(1, 1000)), { reservation })).toEqual({ ok: true, how: 'queued' });
    const used = session.pending.held;
    expect(used).toBeLessThan(5000);
    reservation.release();
    reservation.release();
    expect(session.pending.held).toBe(used);
    const unused = session.pending.reserve(10)!;
    unused.release();
    unused.release();
    expect(session.pending.held).toBe(used);
    await f.close();
  });

  it('[C47][C48] bytes of a cancelled item count while the writer holds them, and a save that would exceed the cap waits for them', async () => {
    const f = await startStore({ reserveWaitMs: 20, overflow: 'drop', cleanupRequestWaitMs: 5 });
    f.gate.hold('rename');
    f.store.save('r', 1024, toLayers(part(1)));
    await f.gate.arrived('rename');
    const held = f.session.pending.held;
    expect(f.store.cleanupRequest('r')).toEqual({ complete: false, inFlight: 1 });
    expect(f.store.has('r', 1024)).toBe(false);
    expect(f.session.pending.held).toBe(held);
    expect(f.store.save('other', 1024, toLayers(part(2)))).toMatchObject({ ok: false, reason: 'backpressure' });
    f.gate.release('rename');
    await f.settled();
    expect(f.store.save('other', 1024, toLayers(part(2)))).toEqual({ ok: true, how: 'queued' });
    await f.settled();
    await f.close();
  });

  it('[C50] no lock is held while a pending entry is copied and decoded; other threads go on meanwhile', async () => {
    const f = await startStore({ pendingMaxBytes: 64 * 1024 * 1024, pageBytes: 1024 * 1024 });
    f.gate.hold('create');
    f.store.save('r', 1024, toLayers(block(3, 32 * 1024 * 1024)));
    await f.gate.arrived('create');
    const { bytesOf } = f.session.space;
    let heldInside: boolean | null = null;
    f.session.space.bytesOf = (item) => {
      const bytes = bytesOf.call(f.session.space, item)!;
      const slice = bytes.slice.bind(bytes);
      bytes.slice = (from, to) => {
        heldInside = f.session.self.held.length > 0;
        return slice(from, to);
      };
      return bytes;
    };
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(3);
    expect(heldInside).toBe(false);
    f.gate.release('create');
    await f.settled();
    await f.close();
  });

  it('[C47] a reader keeps the bytes of an item that ends meanwhile; they go back when it is done', async () => {
    const f = await startStore();
    f.gate.hold('create');
    f.store.save('r', 1024, toLayers(block(3, 1000)));
    await f.gate.arrived('create');
    const item = f.session.items.findVisible(Int32Array.from(f.session.items.keyOf(0)), 1024);
    f.session.underPending('test', () => f.session.space.beginRead(item));
    f.gate.release('create');
    await f.event('written', 1024);
    expect(f.session.pending.held).toBeGreaterThan(0);
    f.session.underPending('test', () => f.session.space.endRead(item));
    await until(() => f.session.pending.held === 0, 'bytes given back');
    await f.settled();
    await f.close();
  });
});
