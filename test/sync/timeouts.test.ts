/** Waits end at their deadline, with an error that names the owner. What must not happen: a wait that outlives its limit. */
import { describe, expect, test, vi } from 'vitest';
import { LockTable, ThreadTable, TimedMutex, withLock } from '../../dist/sync.js';
import { Stage } from './threads.ts';

test('acquire gives false, withLock an error that names owner, site and limit', async () => {
  const stage = new Stage();
  const owner = stage.start('hold', 'owner', { site: 'the place' });
  await owner.said('held');
  expect(await stage.start('acquire', 'now', { timeoutMs: 0 }).result).toMatchObject({ had: false });
  expect(await stage.start('acquire', 'soon', { timeoutMs: 30 }).result).toMatchObject({ had: false });
  expect(await stage.start('withLock', 'with', { timeoutMs: 10 }).result).toMatchObject({
    code: 'LOCK_TIMEOUT',
    details: { lock: 'lock', thread: 'owner', site: 'the place', wantedAt: 'withLock', timeoutMs: 10 },
  });
  expect(stage.locks.readAll(stage.table)[0]).toMatchObject({ timeouts: 3, held: true, owner: 'owner' });
  stage.set(0, 1);
  expect(await owner.result).toBe('released');
  expect(await stage.start('acquire', 'after', { timeoutMs: 10_000 }).result).toMatchObject({ had: true });
});

test('a waiter that gave up does not keep the lock from others', async () => {
  const stage = new Stage();
  const owner = stage.start('hold', 'owner');
  await owner.said('held');
  const patient = stage.start('acquire', 'patient', { timeoutMs: 15_000 });
  await stage.waits('patient');
  await Promise.all(Array.from({ length: 4 }, (_, i) => stage.start('acquire', `brief ${i}`, { timeoutMs: 5 }).result));
  stage.set(0, 1);
  expect(await patient.result).toMatchObject({ had: true });
});

describe('under fake timers', () => {
  test('deadlines are real: the clock is taken at load', () => {
    const threads = new ThreadTable(ThreadTable.create());
    const words = new Int32Array(new SharedArrayBuffer(TimedMutex.WORDS * 4));
    const spec = { name: 'lock', rank: 1 };
    const owner = new TimedMutex(words, 0, spec, threads.enter('other', 'owner', { mayBlock: true }));
    const waiter = new TimedMutex(words, 0, spec, threads.enter('other', 'waiter', { mayBlock: true }));
    owner.acquire(0, 'test');
    vi.useFakeTimers();
    try {
      // With a faked clock this would never end.
      expect(waiter.acquire(20, 'test')).toBe(false);
    } finally {
      vi.useRealTimers();
    }
  });
});

test('a callback that throws leaves the lock free', () => {
  const threads = new ThreadTable(ThreadTable.create());
  const specs = [{ name: 'lock', rank: 1 }];
  const table = new LockTable(new Int32Array(LockTable.wordsFor(specs)), 0, specs);
  const lock = table.mutex('lock', threads.enter('other', 'me', { mayBlock: true }));
  expect(() =>
    withLock(lock, 0, 'test', () => {
      throw new RangeError('inside');
    }),
  ).toThrow(RangeError);
  expect(lock.isHeldByMe()).toBe(false);
  expect(withLock(lock, 0, 'test', () => 7)).toBe(7);
});
