/** The table of threads. What must not happen: a slot shared by two, a stale token taken for a living thread, a torn text. */

import { once } from 'node:events';
import type { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { StringTable } from '../../dist/shared/sync/strings.js';
import { TransitionLog } from '../../dist/shared/sync/transitions.js';
import { ThreadTable } from '../../dist/sync.js';
import { startWorker } from '../helpers/worker.ts';
import { Stage } from './threads.ts';

const create = () => new ThreadTable(ThreadTable.create());

test('what a thread says is read by others', () => {
  const table = create();
  const me = table.enter('engine', 'engine 1');
  expect(table.read(me.slot)).toMatchObject({ name: 'engine 1', kind: 'engine', state: 'alive', activity: 'idle', detail: '', overdueMs: 0, wait: null });
  me.activity('file', '/cache/ä/block', 100_000);
  expect(new ThreadTable(table.buffer).read(me.slot)).toMatchObject({ activity: 'file', detail: '/cache/ä/block', overdueMs: 0 });
  me.activity('stream', 'stream 3', 0, me.slot + 1);
  expect(table.read(me.slot)).toMatchObject({ activity: 'stream', dependsOn: me.slot + 1 });
  me.beginWait('lock', 7, table.strings.intern('pending'), table.strings.intern('save'));
  expect(table.read(me.slot).wait).toMatchObject({ kind: 'lock', id: 7, name: 'pending', site: 'save' });
  me.endWait();
  me.idle();
  expect(table.read(me.slot)).toMatchObject({ activity: 'idle', wait: null, dependsOn: null });
});

test('an activity that outlasts what is normal is overdue; idle never is', async () => {
  const table = create();
  const me = table.enter('other', 'me');
  me.activity('native', 'eval', 1);
  while (table.read(me.slot).overdueMs === 0) await new Promise((resolve) => setTimeout(resolve, 2));
  me.idle();
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect(table.read(me.slot).overdueMs).toBe(0);
});

test('long and multi-byte texts are cut at a character', () => {
  const table = create();
  const me = table.enter('other', 'me');
  me.activity('file', 'ä'.repeat(500));
  expect(table.read(me.slot).detail).toBe('ä'.repeat(80));
});

test('64 threads fit, the next is refused with a code, and a slot that was left is used again', () => {
  const table = create();
  const handles = Array.from({ length: ThreadTable.SLOTS }, (_, i) => table.enter('other', `t${i}`));
  expect(new Set(handles.map((handle) => handle.slot)).size).toBe(64);
  expect(() => table.enter('other', 'too many')).toThrow(expect.objectContaining({ code: 'THREAD_TABLE_FULL' }));
  const { token, slot } = handles[17]!;
  handles[17]!.leave();
  expect([table.isDead(token), table.isGone(token)]).toEqual([true, true]);
  const next = table.enter('other', 'next');
  expect(next.slot).toBe(slot);
  expect(table.isDead(token)).toBe(true);
  expect(table.isDead(next.token)).toBe(false);
  // A late word about the earlier life does not hit the new one.
  table.markDead(slot, token);
  expect(table.isDead(next.token)).toBe(false);
  table.markDead(slot, next.token);
  expect(table.read(slot).state).toBe('dead');
});

test('something else is refused', () => {
  expect(() => new ThreadTable(new SharedArrayBuffer(16))).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
  expect(() => new ThreadTable(new SharedArrayBuffer(ThreadTable.BYTES))).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
});

test('a thread that left keeps its slot out of the hands of its own end', async () => {
  const stage = new Stage([{ name: 'lock', rank: 1 }]);
  const first = stage.start('hold', 'first', { end: 'leave' });
  await first.result;
  const { slot } = stage.thread('first')!;
  const handles = Array.from({ length: ThreadTable.SLOTS }, (_, i) => stage.table.enter('other', `t${i}`));
  expect(handles.some((handle) => handle.slot === slot)).toBe(true);
  await first.exit;
  // Its environment has ended by now; the new user of its slot lives.
  expect(handles.every((handle) => !stage.table.isDead(handle.token))).toBe(true);
});

describe('strings', () => {
  const words = () => new Int32Array(new SharedArrayBuffer(StringTable.WORDS * 4));

  test('equal texts have equal ids on every thread', () => {
    const shared = words();
    const a = new StringTable(shared);
    const b = new StringTable(shared);
    const id = a.intern('src/save.ts');
    expect(b.intern('src/save.ts')).toBe(id);
    expect(b.read(id)).toBe('src/save.ts');
    expect(a.intern('other')).not.toBe(id);
    expect(a.intern('')).toBe(0);
    expect(a.read(0)).toBe('?');
    expect(a.read(b.intern('ünïcödé'))).toBe('ünïcödé');
  });

  test('a full table gives id 0 and stays readable', () => {
    const table = new StringTable(words());
    const ids = Array.from({ length: 3000 }, (_, i) => table.intern(`string number ${i}`));
    expect(ids.at(-1)).toBe(0);
    expect(table.read(ids[0]!)).toBe('string number 0');
    expect(table.read(ids[900]!)).toBe('string number 900');
  });

  test('threads that intern the same texts at the same time agree', async () => {
    const shared = words();
    const source = `
      const { parentPort, workerData } = await import('node:worker_threads');
      const { StringTable } = await import(workerData.url);
      const table = new StringTable(workerData.shared);
      const ids = [];
      for (let i = 0; i < 300; i++) ids.push(table.intern('text ' + i));
      parentPort.postMessage(ids);`;
    const url = new URL('../../dist/shared/sync/strings.js', import.meta.url).href;
    const workers = Array.from({ length: 4 }, () =>
      startWorker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), { workerData: { shared, url } }),
    );
    const ids = await Promise.all(workers.map(async (worker: Worker) => (await once(worker, 'message'))[0] as number[]));
    for (const other of ids) expect(other).toEqual(ids[0]);
    const table = new StringTable(shared);
    expect(ids[0]!.map((id) => table.read(id))).toEqual(Array.from({ length: 300 }, (_, i) => `text ${i}`));
  });
});

describe('transitions', () => {
  test('the last ones come back in order, older ones are overwritten', () => {
    const log = new TransitionLog(new Int32Array(TransitionLog.WORDS));
    for (let i = 0; i < 1000; i++) log.add(i, i % 64, 'acquired', i, 0);
    const last = log.read();
    expect(last).toHaveLength(256);
    expect(last.map((t) => t.subject)).toEqual(Array.from({ length: 256 }, (_, i) => 744 + i));
    expect(log.read(3).map((t) => t.subject)).toEqual([997, 998, 999]);
  });

  test('the count wraps', () => {
    const words = new Int32Array(TransitionLog.WORDS);
    words[0] = 0x7fffffff - 2;
    const log = new TransitionLog(words);
    for (let i = 0; i < 6; i++) log.add(i, 0, 'released', i, 0);
    expect(log.read(6).map((t) => t.subject)).toEqual([0, 1, 2, 3, 4, 5]);
  });
});
