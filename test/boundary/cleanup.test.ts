/**
 * Cleanup and its races: whatever is in flight, nothing of a cleaned request remains, and nothing else is touched.
 * Must not happen: an orphan file or folder, a mark that stays, a cleanup that stops the engine, a later save that is lost.
 */
import { existsSync, readdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { describe, expect, it } from 'vitest';
import { layoutImage } from '../../dist/shared/blocks/image.js';
import { sumOfStates } from '../../dist/shared/session/ledger.js';
import { requestKey } from '../../dist/shared/session/request-key.js';
import { finishUnit, submitUnit, takeUnit } from '../../dist/shared/session/units.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { pathOf, StoreFixture, startStore, until } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { Gate } from './gate.mjs';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fillOf, fromLayers, toLayers } from './layers.mjs';

watchLeaks();

/** A unit without tensors that has its state in the staged file of (id, count). */
function unitFor(id: string, tokenCount: number) {
  const image = layoutImage({
    part: 'kv',
    blockHash: 'ab'.repeat(32),
    parentHash: '',
    start: tokenCount,
    end: tokenCount,
    blockSize: 256,
    tokens: new Uint32Array(0),
    fingerprint: 'f',
    layers: [],
  });
  return { key: requestKey(id)!, requestNo: 1, tokenCount, block: 'ab'.repeat(32), hasState: true, image };
}

describe('cleanup', () => {
  it('[E59] cleanupRequest forgets one request, in memory and on disk, and no other', async () => {
    const f = await startStore();
    for (const [id, count] of [
      ['r1', 1024],
      ['r1', 2048],
      ['r2', 1024],
    ] as const)
      f.store.save(id, count, toLayers(block(1)));
    await f.settled();
    expect(f.store.cleanupRequest('r1')).toEqual({ complete: true, inFlight: 0 });
    expect([f.store.has('r1', 1024), f.store.has('r1', 2048), f.store.has('r2', 1024)]).toEqual([false, false, true]);
    expect(existsSync(dirname(pathOf(f, 'r1', 1024)))).toBe(false);
    expect(f.store.load('r2', 1024).ok).toBe(true);
    await f.settled();
    await f.close();
  });

  it('[E60] after cleanupAll the own folder exists and is empty, and pending bytes are 0 once the writer has let go', async () => {
    const f = await startStore();
    f.store.save('r1', 1024, toLayers(block(1)));
    await f.event('written', 1024);
    f.gate.hold('rename');
    f.store.save('r2', 2048, toLayers(block(2)));
    f.store.save('r3', 3072, toLayers(block(3)));
    await f.gate.arrived('rename');
    const cleaner = await f.actor('other', 'cleaner');
    const cleaning = cleaner.call('cleanupAll');
    await f.waiting('cleaner', 'writerBusy');
    expect([f.store.has('r1', 1024), f.store.has('r2', 2048), f.store.has('r3', 3072)]).toEqual([false, false, false]);
    f.gate.release('rename');
    expect(await cleaning).toMatchObject({ complete: true });
    await f.settled();
    expect(readdirSync(f.memory.stagingDir)).toEqual([]);
    await f.close();
  });

  it.each(['cleanupRequest', 'cleanupAll'])(
    '[E61] %s waits for the writer; when it comes back in time nothing is there and nothing appears later',
    async (operation) => {
      const f = await startStore({ cleanupRequestWaitMs: 10_000, cleanupAllWaitMs: 10_000 });
      f.gate.hold('rename');
      f.store.save('r', 1024, toLayers(block(1)));
      f.store.save('r', 2048, toLayers(block(2)));
      await f.gate.arrived('rename');
      const cleaner = await f.actor('other', 'cleaner');
      const cleaning = operation === 'cleanupAll' ? cleaner.call('cleanupAll') : cleaner.call('cleanupRequest', 'r');
      await f.waiting('cleaner', 'writerBusy');
      f.gate.release('rename');
      expect(await cleaning).toMatchObject({ complete: true });
      expect(f.files()).toEqual([]);
      await f.settled();
      expect(f.files()).toEqual([]);
      await f.close();
    },
  );

  it('[E62] items in flight keep their marks until the writer has passed them: 2, 1, 0; a second cleanup adds up', async () => {
    const f = await startStore({ cleanupRequestWaitMs: 5 });
    f.gate.hold('rename');
    f.store.save('r', 1, toLayers(block(1)));
    f.store.save('other', 2, toLayers(block(2)));
    f.store.save('r', 3, toLayers(block(3)));
    await f.gate.arrived('rename');
    expect(f.store.cleanupRequest('r')).toEqual({ complete: false, inFlight: 2 });
    expect(f.store.cancelledCount('r')).toBe(2);
    f.gate.hold('create');
    f.gate.release('rename');
    await f.gate.arrived('create'); // of the other request
    expect(f.store.cancelledCount('r')).toBe(1);
    f.store.save('r', 4, toLayers(block(4)));
    expect(f.store.cleanupRequest('r')).toEqual({ complete: false, inFlight: 2 });
    f.gate.release('create');
    await f.settled();
    expect(f.store.cancelledCount('r')).toBe(0);
    expect(f.files().filter((name) => name.endsWith('.safetensors'))).toHaveLength(1);
    await f.close();
  });

  const points = [
    ['mkdir', 'before'],
    ['create', 'before'],
    ['create', 'after'],
    ['pwrite', 'before'],
    ['fsync', 'before'],
    ['fsync', 'after'],
    ['rename', 'before'],
    ['rename', 'after'],
  ] as const;
  it.each(points)('[E63] with the limit passed while the writer is held at %s (%s), no file and no folder is left when it ends', async (operation, when) => {
    const f = await startStore({ cleanupRequestWaitMs: 5 });
    f.gate.hold(operation, when);
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived(operation);
    expect(f.store.cleanupRequest('r')).toEqual({ complete: false, inFlight: 1 });
    f.gate.release(operation);
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[E63] an inline write whose request is cleaned before its rename leaves nothing', async () => {
    const f = await startStore({ overflow: 'inline', reserveWaitMs: 5, inlineWriteLimitMs: 10_000, cleanupRequestWaitMs: 5 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    const own = new Gate();
    own.hold('rename');
    const engine = await f.actor('engine', 'engine', { gate: own });
    const saving = engine.call('save', 'r', 1024, block(1));
    await own.arrived('rename');
    expect(f.store.cleanupRequest('r')).toEqual({ complete: false, inFlight: 1 });
    own.release('rename');
    expect(await saving).toMatchObject({ ok: false, reason: 'cancelled' });
    others.release();
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[E64] cleaning a request that never saved makes no mark and does not wait for another request’s item', async () => {
    const f = await startStore({ cleanupRequestWaitMs: 60_000 });
    f.gate.hold('rename');
    f.store.save('other', 1024, toLayers(block(1)));
    await f.gate.arrived('rename');
    expect(f.store.cleanupRequest('ghost')).toEqual({ complete: true, inFlight: 0 });
    expect(f.store.cancelledCount('ghost')).toBe(0);
    expect(f.session.itemsInFlight).toBe(1);
    f.gate.release('rename');
    await f.settled();
    expect(f.store.has('other', 1024)).toBe(true);
    await f.close();
  });

  it('[E65] an inline write that was published but has not got writerBusy when cleanup runs is not written, and leaves no mark', async () => {
    const f = await startStore({ overflow: 'inline', reserveWaitMs: 5, inlineWriteLimitMs: 10_000, cleanupRequestWaitMs: 5 });
    f.gate.hold('rename');
    f.store.save('other', 1024, toLayers(block(1, 1_000_000)));
    await f.gate.arrived('rename');
    const engine = await f.actor('engine', 'engine');
    const saving = engine.call('save', 'r', 1024, block(2, 100_000));
    await f.waiting('engine', 'writerBusy');
    expect(f.store.has('r', 1024)).toBe(true);
    f.store.cleanupRequest('r');
    f.gate.release('rename');
    expect(await saving).toMatchObject({ ok: false, reason: 'cancelled' });
    await f.settled();
    expect(existsSync(dirname(pathOf(f, 'r', 1024)))).toBe(false);
    expect(f.store.cancelledCount('r')).toBe(0);
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, written: 1, dropped: { cancelled: 1 } });
    await f.close();
  });

  it('[E67] a staged file that a unit in the store worker needs stays when its request ends, and goes with the unit', async () => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(block(1)));
    expect(submitUnit(f.session, unitFor('r', 1024))).toBe('queued');
    f.store.save('r', 2048, toLayers(block(2)));
    await f.event('written', 2048);
    f.store.cleanupRequest('r');
    expect(f.files().filter((name) => name.endsWith('.safetensors'))).toHaveLength(1);
    expect(existsSync(pathOf(f, 'r', 1024))).toBe(true);
    const unit = takeUnit(f.session)!;
    f.store.cleanupRequest('r');
    expect(existsSync(pathOf(f, 'r', 1024))).toBe(true);
    finishUnit(f.session, unit);
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[E67] also while it is still to be written: the unit’s end cancels it', async () => {
    const f = await startStore();
    f.gate.hold('rename');
    f.store.save('r', 1024, toLayers(block(1)));
    submitUnit(f.session, unitFor('r', 1024));
    await f.gate.arrived('rename');
    expect(f.store.cleanupRequest('r')).toEqual({ complete: true, inFlight: 0 });
    expect(f.store.has('r', 1024)).toBe(true);
    finishUnit(f.session, takeUnit(f.session)!);
    expect(f.store.has('r', 1024)).toBe(false);
    f.gate.release('rename');
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[E68] a stop that was asked for before cleanupAll still stops the writer', async () => {
    const f = await startStore({ cleanupAllWaitMs: 5 });
    f.gate.hold('create');
    f.store.save('r', 1024, toLayers(block(1)));
    f.store.save('r', 2048, toLayers(block(2)));
    await f.gate.arrived('create');
    f.control.writer.requestStop('drain');
    f.store.cleanupAll();
    f.gate.release('create');
    await f.stop();
    expect(f.control.writer.state).toBe('returned');
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[E69] on the engine thread cleanup marks and returns, and other requests go on while the writer is stuck', async () => {
    const f = await startStore({ cleanupRequestWaitMs: 60_000, cleanupAllWaitMs: 60_000 });
    const engine = await f.actor('engine', 'engine');
    await engine.call('save', 'done', 512, block(9));
    await f.event('written', 512);
    f.gate.hold('fsync');
    await engine.call('save', 'r', 1024, block(1));
    await f.gate.arrived('fsync');
    expect(await engine.call('cleanupRequest', 'r')).toEqual({ complete: false, inFlight: 1 });
    expect(await engine.call('cleanupRequest', 'done')).toEqual({ complete: false, inFlight: 0 });
    expect(await engine.call('save', 'other', 1024, block(2))).toEqual({ ok: true, how: 'queued' });
    expect(await engine.call('has', 'done', 512)).toBe(false);
    f.gate.release('fsync');
    await f.settled();
    expect(f.files().filter((name) => name.endsWith('.safetensors'))).toHaveLength(1);
    expect(fillOf(fromLayers(f.store.load('other', 1024).layers))).toBe(2);
    await f.close();
  });

  it('[D54] a boundary that is saved again while its cancelled predecessor is still in the writer is written and stays', async () => {
    const f = await startStore({ cleanupRequestWaitMs: 5 });
    for (const [operation, when] of [
      ['create', 'before'],
      ['rename', 'before'],
      ['rename', 'after'],
    ]) {
      f.gate.hold(operation, when);
      f.store.save('r', 1024, toLayers(block(1)));
      await f.gate.arrived(operation);
      f.store.cleanupRequest('r');
      expect(f.store.save('r', 1024, toLayers(block(2)))).toEqual({ ok: true, how: 'queued' });
      expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(2);
      f.gate.release(operation);
      await f.settled();
      expect(fillOf(fromLayers(f.store.load('r', 1024).layers)), `${operation} ${when}`).toBe(2);
      f.store.cleanupRequest('r');
      await f.settled();
      expect(f.files()).toEqual([]);
    }
    await f.close();
  });

  it('a file that cannot be removed is reported and forgotten, and the loop goes on', async () => {
    const f = await startStore();
    const engine = await f.actor('engine', 'engine');
    f.store.save('r', 1024, toLayers(block(1)));
    await f.event('written', 1024);
    f.gate.fail('unlink', 'EIO', 1);
    await engine.call('cleanupRequest', 'r');
    expect(await f.event('note')).toMatchObject({ code: 'CACHE_IO' });
    expect(f.store.has('r', 1024)).toBe(false);
    f.store.save('r', 2048, toLayers(block(2)));
    await f.event('written', 2048);
    // Saved again, the boundary is an ordinary one again.
    f.store.save('r', 1024, toLayers(block(3)));
    await f.settled();
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(3);
    f.store.cleanupAll();
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('cleanup without a writer thread does the removal itself', () => {
    const f = new StoreFixture();
    f.open();
    expect(f.store.cleanupAll()).toEqual({ complete: true, inFlight: 0 });
    expect(f.files()).toEqual([]);
    return f.close();
  });

  const calls: [string, (f: StoreFixture) => unknown, unknown][] = [
    ['save', (f) => f.store.save('r', 2048, toLayers(block(2))), { ok: false, reason: 'lock' }],
    ['has', (f) => f.store.has('r', 1024), false],
    ['cleanupRequest', (f) => f.store.cleanupRequest('r'), { complete: false }],
    ['takeStagedFile', (f) => f.store.takeStagedFile('r', 1024), { ok: false, reason: 'lock' }],
  ];
  it.each(calls)('%s on a session whose registry lock died with its owner gives an answer, and the session has failed', async (_, call, answer) => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    const holder = await f.actor('other', 'holder');
    await holder.call('holdLock', 'registry');
    await holder.worker.terminate();
    await until(() => f.session.self.table.list().some(({ name, state }) => name === 'holder' && state !== 'alive'), 'death noticed');
    const got = call(f);
    if (typeof answer === 'object') expect(got).toMatchObject(answer!);
    else expect(got).toBe(answer);
    expect(f.session.state).toBe('failed');
    expect(f.session.ledger.read().pending).toBe(0);
    await f.close();
  });

  it.each(['pending', 'registry', 'cancelled', 'writerBusy'])('a dead owner of %s fails its session and no other, whatever is called next', async (lock) => {
    const f = await startStore();
    const other = f.open();
    const holder = await f.actor('other', 'holder');
    await holder.call('holdLock', lock);
    await holder.worker.terminate();
    await until(() => f.session.self.table.list().some(({ name, state }) => name === 'holder' && state !== 'alive'), 'death noticed');
    f.store.save('r', 1024, toLayers(block(1)));
    f.store.load('r', 1024);
    f.store.has('r', 1024);
    f.store.cleanupRequest('r');
    f.store.cleanupAll();
    f.store.takeStagedFile('r', 1024, { timeoutMs: 5 });
    await until(() => f.session.state === 'failed', 'session failed');
    expect(other.store.save('r', 1024, toLayers(block(3)))).toEqual({ ok: true, how: 'queued' });
    await until(() => other.session.ledger.read().written === 1, 'other session written');
    const figures = f.session.ledger.read();
    expect(figures.pending).toBe(0);
    expect(sumOfStates(figures)).toBe(figures.captured);
    await f.close();
  });

  it('waits end when the lock’s owner dies, and the session says so', async () => {
    const f = await startStore({ cleanupRequestWaitMs: 60_000 });
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    const holder = await f.actor('other', 'holder');
    await holder.call('holdLock', 'registry');
    await holder.worker.terminate();
    await until(() => f.session.self.table.list().some(({ name, state }) => name === 'holder' && state !== 'alive'), 'death noticed');
    expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'lock' });
    expect(f.session.state).toBe('failed');
    expect(f.store.save('r', 4096, toLayers(block(2)))).toMatchObject({ ok: false, reason: 'closed' });
    expect(f.store.has('r', 1024)).toBe(false);
    expect(f.session.pending.tryReserve(10)).toBeNull();
    await until(() => f.events.some(({ type }) => type === 'detached'), 'writer lets go');
    const figures = f.session.ledger.read();
    expect(figures.pending).toBe(0);
    // Another session of the same writer goes on.
    const other = f.open();
    other.store.save('r', 1024, toLayers(block(3)));
    await until(() => other.session.ledger.read().written === 1, 'other session written');
    await f.close();
  });
});
