/**
 * `diagnose()` on the main thread while every other thread is stuck. What must not happen: that it takes a lock, waits, or
 * leaves a cycle unnamed; that it names a cycle where there is none.
 */
import { describe, expect, test } from 'vitest';
import { diagnose } from '../../dist/sync.js';
import { Stage } from './threads.ts';

const TWO = [
  { name: 'writerBusy', rank: 1 },
  { name: 'pending', rank: 2, conditions: ['pendingCond'] },
];

test('two threads that wait for each other are a cycle, told whole', async () => {
  const stage = new Stage(TWO);
  const a = stage.start('entangle', 'engine', { kind: 'engine', first: 'pending', second: 'writerBusy', timeoutMs: 15_000 });
  const b = stage.start('entangle', 'writer', { kind: 'snapshot-writer', first: 'writerBusy', second: 'pending', timeoutMs: 15_000 });
  await Promise.all([a.said('held'), b.said('held')]);
  expect(diagnose(stage.table, [stage.locks]).cycles).toEqual([]);
  stage.set(0, 1);
  await Promise.all([stage.waits('engine'), stage.waits('writer')]);

  const { cycles, threads, locks, text } = diagnose(stage.table, [stage.locks]);
  expect(cycles).toHaveLength(1);
  expect(cycles[0]).toMatch(/engine waits for lock writerBusy \(at engine second\), held at writer first by writer/);
  expect(cycles[0]).toMatch(/writer waits for lock pending \(at writer second\), held at engine first by engine/);
  expect(threads.find((t) => t.name === 'engine')).toMatchObject({ kind: 'engine', alive: true, activity: 'lock' });
  expect(threads.find((t) => t.name === 'engine')!.detail).toContain('writerBusy at engine second, held by writer');
  expect(locks.find((l) => l.name === 'pending')).toMatchObject({ held: true, owner: 'engine', site: 'engine first', waiters: 1 });
  expect(text).toContain('CYCLES (1)');
  expect(text).toMatch(/writer waits pending at writer second/);
  // End it: the table says which thread to end.
  await a.worker.terminate();
  expect(diagnose(stage.table, [stage.locks])).toMatchObject({ cycles: [] });
});

test('a lock held over a wait for another thread’s stream, wanted by that thread, is a cycle that names the stream', async () => {
  const stage = new Stage([{ name: 'bufferAccess', rank: 100 }]);
  const engine = stage.start('hold', 'idle engine', { kind: 'engine' });
  await engine.said('held');
  stage.set(0, 1);
  await engine.result;
  await engine.exit;
  stage.set(0, 0);
  // The engine's slot is known before the store worker says whose stream it waits for.
  const placeholder = stage.table.enter('other', 'placeholder');
  const worker = stage.start('entangle', 'store-worker', { kind: 'store-worker', first: 'bufferAccess', stream: placeholder.slot + 2 });
  await worker.said('held');
  const wanting = stage.start('acquire', 'engine', { kind: 'engine', timeoutMs: 15_000, site: 'syncAndClearCache' });
  const { slot } = await stage.waits('engine');
  expect(slot).toBe(placeholder.slot + 2);
  stage.set(0, 1);
  await worker.said('waits');
  const { cycles, threads } = diagnose(stage.table, [stage.locks]);
  expect(cycles).toHaveLength(1);
  expect(cycles[0]).toMatch(/store-worker waits for stream stream 3 of engine/);
  expect(cycles[0]).toMatch(/engine waits for lock bufferAccess \(at syncAndClearCache\), held at store-worker first by store-worker/);
  expect(threads.find((t) => t.name === 'store-worker')).toMatchObject({ activity: 'stream', detail: 'stream 3 (of engine)' });
  stage.set(1, 1);
  expect(await worker.result).toBe('untangled');
  expect(await wanting.result).toMatchObject({ had: true });
});

describe('one stuck thread', () => {
  test('a chain of waits is no cycle', async () => {
    const stage = new Stage(TWO);
    const owner = stage.start('hold', 'owner', { lock: 'pending', site: 'save' });
    await owner.said('held');
    stage.start('acquire', 'w1', { lock: 'pending', timeoutMs: 15_000 });
    stage.start('acquire', 'w2', { lock: 'pending', timeoutMs: 15_000 });
    await Promise.all([stage.waits('w1'), stage.waits('w2')]);
    const { cycles, locks, text } = diagnose(stage.table, [stage.locks]);
    expect(cycles).toEqual([]);
    expect(locks.find((l) => l.name === 'pending')).toMatchObject({ owner: 'owner', site: 'save', waiters: 2 });
    expect(text).toContain('no cycle');
    stage.set(0, 1);
  });

  test('a condition is named, with its waiters', async () => {
    const stage = new Stage();
    const waiter = stage.start('waitUntil', 'waiter', { atLeast: 1, timeoutMs: 15_000 });
    await stage.waits('waiter');
    const { threads, locks } = diagnose(stage.table, [stage.locks]);
    expect(threads).toMatchObject([{ name: 'waiter', activity: 'condition' }]);
    expect(locks.find((l) => l.name === 'condition')).toMatchObject({ waiters: 1 });
    await waiter.worker.terminate();
  });

  test('a lock lost with its owner is shown with the dead thread', async () => {
    const stage = new Stage();
    const owner = stage.start('hold', 'owner', { site: 'the place' });
    await owner.said('held');
    await owner.worker.terminate();
    const { threads, locks, text } = diagnose(stage.table, [stage.locks]);
    expect(threads).toMatchObject([{ name: 'owner', alive: false }]);
    expect(locks[0]).toMatchObject({ held: true, owner: 'owner (dead)', site: 'the place' });
    expect(text).toContain('owner [dead]');
  });
});

test('it never names a cycle while threads work in the right order', async () => {
  const stage = new Stage();
  const threads = [0, 1, 2].map((index) => stage.start('count', `t${index}`, { index, parties: 3, rounds: 3_000, others: [], holdMs: 0.01 }));
  const done = Promise.all(threads.map((thread) => thread.result));
  let running = true;
  const over = () => {
    running = false;
  };
  done.then(over, over);
  let looks = 0;
  while (running) {
    expect(diagnose(stage.table, [stage.locks]).cycles).toEqual([]);
    looks++;
    await new Promise((resolve) => setImmediate(resolve));
  }
  await done;
  expect(looks).toBeGreaterThan(0);
});
