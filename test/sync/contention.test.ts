/**
 * Real threads on one lock. What must not happen: two threads inside, a round lost, a thread that gets nothing while another
 * takes the lock again and again. Rounds are finite: endless traffic would heal a lost wake-up.
 */
import { expect, test } from 'vitest';
import { Stage } from './threads.ts';

async function contend(parties: number, args: Record<string, unknown>) {
  const stage = new Stage();
  const threads = Array.from({ length: parties }, (_, index) =>
    stage.start('count', `t${index}`, { index, parties, others: Array.from({ length: parties }, (_, i) => i).filter((i) => i !== index), ...args }),
  );
  const results = (await Promise.all(threads.map((thread) => thread.result))) as { others: number[] }[];
  return { total: stage.shared[0], results, lock: stage.locks.readAll(stage.table)[0]! };
}

test.each([2, 4])('%i threads, short holds: every round is counted', async (parties) => {
  const { total, lock } = await contend(parties, { rounds: 20_000 });
  expect(total).toBe(parties * 20_000);
  expect(lock).toMatchObject({ held: false, waiters: 0, timeouts: 0 });
});

test('a reentrant lock is as exclusive, at any depth', async () => {
  const { total, lock } = await contend(3, { rounds: 5_000, reentrant: true, depth: 3 });
  expect(total).toBe(15_000);
  expect(lock).toMatchObject({ held: false, depth: 0, kind: 'reentrant' });
});

test('nobody starves: when the first of two is through, the other has had its turns', async () => {
  // Long holds with no pause between them: a plain futex mutex lets one thread do nearly all rounds first.
  const { results, lock } = await contend(2, { rounds: 1_500, holdMs: 0.2 });
  for (const { others } of results) expect(others[0]).toBeGreaterThan(150);
  expect(lock.longestHoldMs).toBeGreaterThan(0.19);
  expect(lock.longestWaitMs).toBeGreaterThan(0);
});
