/** Conditions with real threads. What must not happen: a wake-up lost, a wait that returns without the lock, an end unnoticed. */
import { expect, test } from 'vitest';
import { Condition, LockTable, ThreadTable } from '../../dist/sync.js';
import { Stage } from './threads.ts';

test('a producer and three consumers: everything is taken once', async () => {
  const stage = new Stage();
  const total = 6_000;
  const consumers = Array.from({ length: 3 }, (_, i) => stage.start('consume', `c${i}`, { total }));
  const producer = stage.start('produce', 'producer', { rounds: total });
  expect(await producer.result).toBe('produced');
  const taken = (await Promise.all(consumers.map((consumer) => consumer.result))) as number[];
  expect(taken.reduce((a, b) => a + b)).toBe(total);
  expect(stage.locks.readAll(stage.table)).toMatchObject([{ held: false }, { name: 'condition', kind: 'condition', waiters: 0 }]);
});

test('the main thread wakes waiters with a word and a broadcast, without the lock', async () => {
  const stage = new Stage();
  const waiter = stage.start('waitUntil', 'waiter', { atLeast: 1, timeoutMs: 15_000 });
  expect(await stage.waits('waiter')).toMatchObject({ wait: { kind: 'condition', name: 'condition', site: 'waitUntil' } });
  Atomics.store(stage.shared, 2, 1);
  Condition.broadcastAt(new Int32Array(stage.words), stage.locks.offset('condition'));
  expect(await waiter.result).toEqual({ ok: true, held: true });
});

test('a deadline ends the wait with the lock held', async () => {
  const stage = new Stage();
  expect(await stage.start('waitUntil', 'waiter', { atLeast: 1, timeoutMs: 80 }).result).toEqual({ ok: false, held: true });
});

test('the lock is free while a thread waits, and a waiter learns that its new owner died', async () => {
  const stage = new Stage();
  const waiter = stage.start('waitUntil', 'waiter', { atLeast: 1, timeoutMs: 15_000 });
  await stage.waits('waiter');
  const owner = stage.start('hold', 'owner', { site: 'the place' });
  await owner.said('held');
  await owner.worker.terminate();
  expect(await waiter.result).toMatchObject({ code: 'LOCK_OWNER_DIED', details: { lock: 'lock', thread: 'owner', site: 'the place' }, held: false });
});

test('waiting needs the lock, and no lock above it', () => {
  const threads = new ThreadTable(ThreadTable.create());
  const self = threads.enter('other', 'me', { mayBlock: true });
  const specs = [
    { name: 'low', rank: 1, conditions: ['condition'] },
    { name: 'high', rank: 2 },
  ];
  const table = new LockTable(new Int32Array(new SharedArrayBuffer(LockTable.wordsFor(specs) * 4)), 0, specs);
  const low = table.mutex('low', self);
  const condition = table.condition('condition', low);
  expect(() => condition.wait(0)).toThrow(expect.objectContaining({ code: 'LOCK_NOT_OWNER' }));
  low.acquire(0, 'test');
  table.mutex('high', self).acquire(0, 'test');
  expect(() => condition.wait(0)).toThrow(expect.objectContaining({ code: 'LOCK_RANK' }));
});

test('waiting on a reentrant lock gives it up whole and takes it back to its depth', () => {
  const threads = new ThreadTable(ThreadTable.create());
  const specs = [{ name: 'lock', rank: 1, conditions: ['condition'] }];
  const table = new LockTable(new Int32Array(new SharedArrayBuffer(LockTable.wordsFor(specs) * 4)), 0, specs);
  const lock = table.reentrant('lock', threads.enter('other', 'me', { mayBlock: true }));
  for (let i = 0; i < 3; i++) lock.acquire(0, 'test');
  expect(table.condition('condition', lock).wait(1)).toBe('timeout');
  expect(lock.depth).toBe(3);
});

test('a broadcast between the ticket and the wait is not missed', () => {
  const threads = new ThreadTable(ThreadTable.create());
  const specs = [{ name: 'lock', rank: 1, conditions: ['condition'] }];
  const table = new LockTable(new Int32Array(new SharedArrayBuffer(LockTable.wordsFor(specs) * 4)), 0, specs);
  const lock = table.mutex('lock', threads.enter('other', 'me', { mayBlock: true }));
  const condition = table.condition('condition', lock);
  lock.acquire(0, 'test');
  const ticket = condition.ticket();
  condition.broadcast();
  expect(condition.wait(10_000, ticket)).toBe('notified');
});
