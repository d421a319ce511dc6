/**
 * The order of locks. What must not happen: an order violation that goes unseen in development or stops production, and a
 * lock taken on the app's main thread.
 */
import { afterEach, expect, test } from 'vitest';
import type { ThreadHandle } from '../../dist/sync.js';
import { BUFFER_ACCESS, LockTable, RANKS, SESSION_LOCKS, ThreadTable } from '../../dist/sync.js';

const SPECS = [...SESSION_LOCKS, { ...BUFFER_ACCESS, kind: 'reentrant' as const }];

function setUp(options: { mayBlock?: boolean } = { mayBlock: true }) {
  const threads = new ThreadTable(ThreadTable.create());
  const self: ThreadHandle = threads.enter('other', 'me', options);
  const table = new LockTable(new Int32Array(new SharedArrayBuffer(LockTable.wordsFor(SPECS) * 4)), 0, SPECS);
  const mutex = (name: string) => table.mutex(name, self);
  return {
    threads,
    table,
    self,
    writerBusy: mutex('writerBusy'),
    pending: mutex('pending'),
    registry: mutex('registry'),
    cancelled: mutex('cancelled'),
    bufferAccess: table.reentrant('bufferAccess', self),
  };
}

const environment = process.env.NODE_ENV;
afterEach(() => {
  process.env.NODE_ENV = environment;
});

test('ranks are those of the protocol', () => {
  expect(RANKS).toEqual({ writerBusy: 1, pending: 2, registry: 3, cancelled: 4, bufferAccess: 100 });
  expect(BUFFER_ACCESS).toMatchObject({ rank: 100, maxUnder: 1, onOwnerDeath: 'takeover' });
});

test('rising ranks are fine, all four at once', () => {
  const { writerBusy, pending, registry, cancelled } = setUp();
  const all = [writerBusy, pending, registry, cancelled];
  for (const lock of all) expect(lock.acquire(0, 'test')).toBe(true);
  // Any order of release.
  for (const lock of [pending, cancelled, writerBusy, registry]) lock.release();
  for (const lock of all) expect(lock.isHeldByMe()).toBe(false);
});

test.each([
  ['pending', 'writerBusy'],
  ['registry', 'pending'],
  ['cancelled', 'registry'],
] as const)('%s held, %s wanted: refused, naming both', (held, wanted) => {
  const locks = setUp();
  locks[held].acquire(0, 'test');
  expect(() => locks[wanted].acquire(0, 'there')).toThrow(
    expect.objectContaining({ code: 'LOCK_RANK', message: expect.stringMatching(new RegExp(`'${wanted}'.*'${held}'.*there`)) }),
  );
  expect(locks[wanted].isHeldByMe()).toBe(false);
  locks[held].release();
  expect(locks[wanted].acquire(0, 'test')).toBe(true);
});

test('bufferAccess is a leaf: under writerBusy at most, nothing under it', () => {
  const { writerBusy, pending, bufferAccess } = setUp();
  writerBusy.acquire(0, 'test');
  expect(bufferAccess.acquire(0, 'test')).toBe(true);
  expect(() => pending.acquire(0, 'test')).toThrow(expect.objectContaining({ code: 'LOCK_RANK' }));
  bufferAccess.release();
  expect(pending.acquire(0, 'test')).toBe(true);
  expect(() => bufferAccess.acquire(0, 'test')).toThrow(expect.objectContaining({ code: 'LOCK_RANK' }));
});

test('two sessions: equal ranks exclude each other', () => {
  const { pending, self, threads } = setUp();
  const other = new LockTable(new Int32Array(LockTable.wordsFor(SPECS)), 0, SPECS).mutex('pending', self);
  pending.acquire(0, 'test');
  expect(() => other.acquire(0, 'test')).toThrow(expect.objectContaining({ code: 'LOCK_RANK' }));
  expect(threads.rankViolations).toBe(0);
});

test('a violation is counted in production, and goes on', () => {
  process.env.NODE_ENV = 'production';
  const { pending, writerBusy, threads } = setUp();
  pending.acquire(0, 'test');
  expect(writerBusy.acquire(0, 'test')).toBe(true);
  expect(threads.rankViolations).toBe(1);
});

test('taking a mutex twice throws in production too: waiting for oneself has no end', () => {
  process.env.NODE_ENV = 'production';
  const { pending } = setUp();
  pending.acquire(0, 'test');
  expect(() => pending.acquire(1_000_000, 'again')).toThrow(expect.objectContaining({ code: 'LOCK_RANK', message: expect.stringContaining('not reentrant') }));
});

test('a reentrant lock counts its depth and is free at the last release', () => {
  const { bufferAccess, table, threads } = setUp();
  const read = () => table.readAll(threads).find((lock) => lock.name === 'bufferAccess')!;
  for (const depth of [1, 2, 3]) {
    bufferAccess.acquire(0, 'test');
    expect([bufferAccess.depth, read().depth]).toEqual([depth, depth]);
  }
  bufferAccess.release();
  bufferAccess.release();
  expect(read()).toMatchObject({ held: true, owner: 'me', depth: 1, site: 'test' });
  bufferAccess.release();
  expect(read()).toMatchObject({ held: false, owner: null, depth: 0 });
  expect(() => bufferAccess.release()).toThrow(expect.objectContaining({ code: 'LOCK_NOT_OWNER' }));
});

test('a mutex of another thread is not released', () => {
  const { pending, table, threads } = setUp();
  const other = table.mutex('pending', threads.enter('other', 'you', { mayBlock: true }));
  pending.acquire(0, 'test');
  expect(() => other.release()).toThrow(expect.objectContaining({ code: 'LOCK_NOT_OWNER' }));
  expect(pending.isHeldByMe()).toBe(true);
});

test('the main thread takes no lock, also a free one', () => {
  const { pending, bufferAccess } = setUp({});
  for (const lock of [pending, bufferAccess]) expect(() => lock.acquire(0, 'main')).toThrow(expect.objectContaining({ code: 'LOCK_ON_MAIN_THREAD' }));
});
