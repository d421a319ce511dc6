/**
 * A thread dies with a lock. What must not happen: a waiter that hangs, one that gets a lock of rank 1 to 4 from the dead, or
 * an error that does not say who, which and where.
 */
import { describe, expect, test } from 'vitest';
import { Stage } from './threads.ts';

/** Far above the 100 ms promised, and far below the waiters' own limit: what is tested is that they notice at all. */
const WAIT_MS = 15_000;

const ENDS: [string, (worker: { terminate(): unknown }) => unknown, Record<string, unknown>][] = [
  ['terminate', (worker) => worker.terminate(), {}],
  ['an uncaught error', () => undefined, { end: 'throw' }],
  ['process.exit', () => undefined, { end: 'exit' }],
];

describe.each([
  ['with death words of the native core', true],
  ['without them, marked by the parent', false],
])('%s', (_, native) => {
  test.each(ENDS)('the owner ends by %s: waiters are told lock, thread and site', async (_, end, args) => {
    const stage = new Stage();
    const owner = stage.start('hold', 'owner', { site: 'the place', native, ...args });
    const { threadId } = owner.worker;
    await owner.said('held');
    const waiters = ['w1', 'w2'].map((name) => stage.start('acquire', name, { timeoutMs: WAIT_MS, site: 'here', native }));
    await Promise.all(['w1', 'w2'].map((name) => stage.waits(name)));
    await end(owner.worker);
    if (args.end !== undefined) stage.set(0, 1);
    await owner.exit;
    if (!native) stage.table.markWorkerDead(threadId);
    for (const waiter of waiters) {
      const told = (await waiter.result) as { code: string; waitedMs: number; details: object; message: string };
      expect(told.code).toBe('LOCK_OWNER_DIED');
      expect(told.details).toMatchObject({ lock: 'lock', thread: 'owner', site: 'the place', wantedAt: 'here' });
      expect(told.message).toMatch(/'owner'.*'lock'.*the place/);
      expect(told.waitedMs).toBeLessThan(WAIT_MS);
    }
    // It stays so, and is seen from outside.
    expect(await stage.start('acquire', 'late', { timeoutMs: WAIT_MS }).result).toMatchObject({ code: 'LOCK_OWNER_DIED' });
    expect(stage.locks.readAll(stage.table)[0]).toMatchObject({ held: true, ownerDead: true, owner: 'owner', site: 'the place' });
  });
});

test('the slot of the dead is used again, and its lock stays lost', async () => {
  const stage = new Stage();
  const owner = stage.start('hold', 'owner');
  await owner.said('held');
  await owner.worker.terminate();
  const token = stage.thread('owner')!.token;
  // Fill the table so that the slot of the dead is the only one left.
  const handles = Array.from({ length: 63 }, (_, i) => stage.table.enter('other', `filler ${i}`));
  const again = stage.table.enter('other', 'successor');
  expect(again.slot).toBe(0);
  expect(again.token).not.toBe(token);
  expect(stage.table.isDead(token)).toBe(true);
  for (const handle of handles) handle.leave();
  expect(await stage.start('acquire', 'late', { timeoutMs: WAIT_MS }).result).toMatchObject({ code: 'LOCK_OWNER_DIED' });
});

test('a thread that leaves the table with a lock counts as dead', async () => {
  const stage = new Stage();
  await stage.start('hold', 'owner', { end: 'leave' }).said('held');
  expect(await stage.start('acquire', 'waiter', { timeoutMs: WAIT_MS }).result).toMatchObject({ code: 'LOCK_OWNER_DIED' });
});

test('a lock that guards no data of ours is taken over, by one at a time', async () => {
  const stage = new Stage([{ name: 'lock', rank: 100, onOwnerDeath: 'takeover' }]);
  const owner = stage.start('hold', 'owner', { reentrant: true });
  await owner.said('held');
  const waiters = ['w1', 'w2', 'w3'].map((name) => stage.start('acquire', name, { timeoutMs: WAIT_MS, reentrant: true }));
  await Promise.all(['w1', 'w2', 'w3'].map((name) => stage.waits(name)));
  await owner.worker.terminate();
  for (const waiter of waiters) expect(await waiter.result).toMatchObject({ had: true });
  expect(stage.locks.readAll(stage.table)[0]).toMatchObject({ held: false, takeovers: 1 });
});

test('a waiter that dies holds up nobody', async () => {
  const stage = new Stage();
  const owner = stage.start('hold', 'owner');
  await owner.said('held');
  const victim = stage.start('acquire', 'victim', { timeoutMs: WAIT_MS });
  await stage.waits('victim');
  const other = stage.start('acquire', 'other', { timeoutMs: WAIT_MS });
  await stage.waits('other');
  await victim.worker.terminate();
  expect(stage.locks.readAll(stage.table)[0]!.waiters).toBe(1);
  stage.set(0, 1);
  expect(await owner.result).toBe('released');
  expect(await other.result).toMatchObject({ had: true });
  expect(await stage.start('acquire', 'late', { timeoutMs: WAIT_MS }).result).toMatchObject({ had: true });
});
