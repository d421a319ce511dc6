/**
 * The writer: one item at a time, in one order, and whatever goes wrong stays with that item.
 * Must not happen: bytes given back before the file is there, a half file under the final name, a loop that ends with an error.
 */
import { spawn } from 'node:child_process';
import { existsSync, statSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { dist } from '../helpers/paths.ts';
import { StoreFixture as Fixture, pathOf, type StoreFixture, startStore, until } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fillOf, fromLayers, toLayers } from './layers.mjs';

watchLeaks();

const writerBusy = (f: StoreFixture) => f.session.readLocks(f.session.self.table).find(({ name }) => name === 'writerBusy')!;

describe('snapshot writer', () => {
  it('[D52] one thread of that name; it holds writerBusy from taking an item to its end, and nothing when idle', async () => {
    const f = await startStore();
    const named = new ThreadTable(f.shared.threads).list().filter(({ name }) => name === 'boundary-snapshot-writer');
    expect(named).toMatchObject([{ kind: 'snapshot-writer', state: 'alive' }]);
    for (const operation of ['create', 'pwrite', 'fsync', 'rename']) {
      f.gate.hold(operation);
      f.store.save('r', 1024, toLayers(block(1)));
      await f.gate.arrived(operation);
      expect(writerBusy(f), operation).toMatchObject({ held: true, owner: 'boundary-snapshot-writer', site: 'writer' });
      f.gate.release(operation);
      await f.settled();
    }
    await until(() => !writerBusy(f).held, 'writerBusy free');
    expect(f.session.itemsInFlight).toBe(0);
    await until(() => f.session.pages.inUse === 0, 'no page in use');
    await f.close();
  });

  it('[D52] it says what it does: file operations with their path, then idle', async () => {
    const f = await startStore();
    const look = () => new ThreadTable(f.shared.threads).list().find(({ name }) => name === 'boundary-snapshot-writer')!;
    f.gate.hold('fsync');
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived('fsync');
    expect(look()).toMatchObject({ activity: 'file' });
    expect(look().detail).toContain('_boundary_snapshots');
    f.gate.release('fsync');
    await f.settled();
    await until(() => look().activity === 'idle', 'idle');
    await f.close();
  });

  it('[D52] it does not keep a process alive', async () => {
    const source = `
      const { Worker, MessageChannel } = await import('node:worker_threads');
      const { HubControl } = await import(${JSON.stringify(dist('shared/loop-control'))});
      const { createProcessShared } = await import(${JSON.stringify(dist('shared/process-shared'))});
      const [mailbox, events] = [new MessageChannel(), new MessageChannel()];
      const workerData = { shared: createProcessShared(), hub: HubControl.create(), cacheDir: '/nonexistent', stagingRoot: '/nonexistent/s', mode: 'read-only', maxBytes: 1, blockSize: 256, life: 1, mailbox: mailbox.port2, events: events.port2 };
      const writer = new Worker(${JSON.stringify(dist('snapshot-writer/main'))}, { workerData, transferList: [mailbox.port2, events.port2], execArgv: [] });
      writer.unref();
      events.port1.once('message', () => { process.stdout.write('started'); events.port1.close(); mailbox.port1.close(); });
    `;
    const child = spawn(process.execPath, ['--input-type=module', '-e', source], { stdio: ['ignore', 'pipe', 'inherit'] });
    let said = '';
    child.stdout.on('data', (data) => {
      said += data;
    });
    const timer = setTimeout(() => child.kill('SIGKILL'), 20_000);
    const code = await new Promise((resolve) => child.once('exit', resolve));
    clearTimeout(timer);
    expect([code, said]).toEqual([0, 'started']);
  });

  it('[D53] the order is folder, temporary file, payload, sync, rename, then the release of bytes; no directory sync', async () => {
    const f = await startStore();
    f.gate.takeTrace();
    f.gate.hold('rename', 'after');
    f.store.save('r', 1024, toLayers(block(1, 10_000)));
    await f.gate.arrived('rename');
    expect(existsSync(pathOf(f, 'r', 1024))).toBe(true);
    expect(f.session.pending.held).toBeGreaterThan(10_000);
    f.gate.release('rename');
    await f.settled();
    const trace = f.gate.takeTrace().filter((operation: string) => operation !== 'lstat');
    // Three pages of payload, then the header with their checksums.
    expect(trace).toEqual(['mkdir', 'mkdir', 'create', 'pwrite', 'pwrite', 'pwrite', 'pwrite', 'fsync', 'rename']);
    await f.close();
  });

  it('[D54] items that were cleaned before the writer took them: nothing written, no folder, only their bytes given back', async () => {
    const f = new Fixture();
    f.open();
    f.store.save('r', 1024, toLayers(block(1)));
    f.store.save('r', 2048, toLayers(block(2)));
    expect(f.store.cancelledCount('r')).toBe(0);
    expect(f.store.cleanupRequest('r')).toEqual({ complete: true, inFlight: 2 });
    expect(f.session.pending.held).toBe(0);
    await f.startWriter();
    await f.settled();
    expect(f.gate.count('create')).toBe(0);
    expect(f.files()).toEqual([]);
    expect(f.store.cancelledCount('r')).toBe(0);
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, dropped: { cancelled: 2 } });
    await f.close();
  });

  const failures = ['ENOSPC', 'EIO', 'EROFS', 'EACCES'].flatMap((errno) =>
    ['mkdir', 'create', 'pwrite', 'fsync', 'rename'].map((operation) => [errno, operation] as const),
  );
  it.each(failures)('[D55] %s from %s: the boundary fails with its errno, nothing of it remains, the next one is written', async (errno, operation) => {
    const f = await startStore();
    f.gate.fail(operation, errno, 1);
    expect(f.store.save('r', 1024, toLayers(block(1))).ok).toBe(true);
    expect(f.store.save('r', 2048, toLayers(block(2))).ok).toBe(true);
    expect(await f.event('failed', 1024)).toMatchObject({ errno, session: 1 });
    await f.event('written', 2048);
    expect(f.store.has('r', 1024)).toBe(false);
    expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'absent' });
    expect(fillOf(fromLayers(f.store.load('r', 2048).layers))).toBe(2);
    await f.settled();
    expect(f.files().filter((name) => !name.endsWith('/'))).toHaveLength(1);
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, written: 1, failed: 1 });
    await f.close();
  });

  it('[D55] a disk that fails is told once, and once that it is well again', async () => {
    const f = await startStore();
    f.gate.fail('fsync', 'ENOSPC');
    for (const count of [1, 2, 3]) f.store.save('r', count, toLayers(block(1)));
    await f.event('failed', 3);
    f.gate.heal('fsync');
    f.store.save('r', 4, toLayers(block(1)));
    await f.event('written', 4);
    const told = f.events.filter(({ type }) => type === 'degraded' || type === 'recovered');
    expect(told).toMatchObject([
      { type: 'degraded', code: 'CACHE_FULL', details: { errno: 'ENOSPC' } },
      { type: 'recovered', code: 'CACHE_FULL' },
    ]);
    await f.settled();
    await f.close();
  });

  it('[D55] short writes are continued', async () => {
    const f = await startStore();
    f.gate.shorten('pwrite', 999);
    f.store.save('r', 1024, toLayers(block(6, 50_000)));
    await f.event('written', 1024);
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(6);
    await f.close();
  });

  it('[D55] a failure of a boundary that was on disk before takes the old file along: no state of another time is served', async () => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    f.gate.fail('pwrite', 'EIO', 1);
    f.store.save('r', 1024, toLayers(block(2)));
    await f.event('failed', 1024);
    await f.settled();
    expect(f.store.has('r', 1024)).toBe(false);
    expect(f.files()).toEqual([]);
    await f.close();
  });

  const points = [
    ['before the write', 'create', 'before'],
    ['between write and rename', 'rename', 'before'],
    ['after the rename', 'rename', 'after'],
  ] as const;
  it.each(points)('[D56] cancelled %s: neither temporary nor final file nor folder remains', async (_, operation, when) => {
    const f = await startStore({ cleanupRequestWaitMs: 5 });
    f.gate.hold(operation, when);
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived(operation);
    expect(f.store.cleanupRequest('r')).toEqual({ complete: false, inFlight: 1 });
    f.gate.release(operation);
    await f.settled();
    expect(f.files()).toEqual([]);
    expect(f.store.cancelledCount('r')).toBe(0);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, written: 0, dropped: { cancelled: 1 } });
    await f.close();
  });

  it('[D57] a file is its payload and a header below 0.1 %, each byte written once', async () => {
    const f = await startStore({ pendingMaxBytes: 16 * 1024 * 1024, pageBytes: 1024 * 1024 });
    const payload = 4 * 1024 * 1024;
    f.gate.takeTrace();
    f.store.save('r', 1024, toLayers(block(1, payload)));
    await f.settled();
    const { size } = statSync(pathOf(f, 'r', 1024));
    expect(size - payload).toBeLessThan(payload / 1000);
    // One for what lies in each page, and one for the header.
    expect(f.gate.takeTrace().filter((operation: string) => operation === 'pwrite')).toHaveLength(Math.ceil(size / (1024 * 1024)) + 1);
    expect(f.session.pending.bytesWritten).toBe(size);
    await f.close();
  });

  it('[D58] a synced staged file is written, not durable', async () => {
    const f = await startStore();
    f.gate.hold('fsync', 'after');
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived('fsync');
    expect(f.events.some(({ type }) => type === 'written')).toBe(false);
    f.gate.release('fsync');
    await f.event('written', 1024);
    await f.settled();
    expect(f.events.some(({ type }) => type === 'durable')).toBe(false);
    expect(f.session.ledger.read()).toMatchObject({ written: 1, durable: 0 });
    await f.close();
  });

  it('a stop drains what is queued; `now` ends after the current item and counts the rest as dropped', async () => {
    const f = await startStore();
    f.gate.hold('create');
    for (const count of [1, 2, 3]) f.store.save('r', count, toLayers(block(count)));
    await f.gate.arrived('create');
    f.control.writer.requestStop('drain');
    f.gate.release('create');
    await f.close();
    expect(f.session.ledger.read()).toMatchObject({ captured: 3, written: 3 });

    const g = await startStore();
    g.gate.hold('create');
    for (const count of [1, 2, 3]) g.store.save('r', count, toLayers(block(count)));
    await g.gate.arrived('create');
    g.control.writer.requestStop('now');
    g.gate.release('create');
    await g.stop('now');
    expect(g.session.ledger.read()).toMatchObject({ captured: 3, written: 1, dropped: { closed: 2 } });
    await g.settled();
    await g.close();
  });

  it('a closed session is refused at once and what it accepted is still written; then it can be detached', async () => {
    const f = await startStore();
    f.gate.hold('create');
    f.store.save('r', 1, toLayers(block(1)));
    f.store.save('r', 2, toLayers(block(2)));
    await f.gate.arrived('create');
    f.store.close();
    expect(f.store.save('r', 3, toLayers(block(3)))).toMatchObject({ ok: false, reason: 'closed' });
    expect(f.store.load('r', 1)).toMatchObject({ ok: false, reason: 'off' });
    expect(f.store.has('r', 1)).toBe(false);
    expect(f.store.cleanupRequest('r')).toEqual({ complete: true, inFlight: 0 });
    f.detach(f.session);
    f.gate.release('create');
    await f.event('detached');
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, written: 2 });
    await f.settled();
    await f.close();
  });

  it('an idle writer touches pages ahead of need, and a save uses touched pages', async () => {
    const f = await startStore();
    f.store.save('r', 1, toLayers(block(1, 20_000)));
    await f.settled();
    await until(() => f.session.pages.touchedFree >= 15, 'touched ahead');
    const before = f.session.pages.touchedFree;
    f.gate.hold('create');
    f.store.save('r', 2, toLayers(block(1, 20_000)));
    await f.gate.arrived('create');
    expect(f.session.pages.touchedFree).toBeLessThan(before);
    f.gate.release('create');
    await f.settled();
    await f.close();
  });
});
