/**
 * Loop threads that die. What must not happen: a loop that is not replaced, a session served with a lost lock, more than one
 * event for one trouble, a replacement that waits for a busy main thread.
 */
import { once } from 'node:events';
import type { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { watchLeaks } from '../helpers/leaks.ts';
import { tempDir } from '../helpers/temp.ts';
import { COMMAND, closeHubsAfterEach, is, isNote, listen, newSession, obedient, openHub } from './hub.ts';

watchLeaks();
closeHubsAfterEach();

async function start(init: Parameters<typeof obedient>[0] = {}) {
  const commands = obedient(init);
  const hub = (await openHub(tempDir('hub'), commands.tuning)).hub!;
  const heard = listen(hub);
  const port = await hub.attachSession(newSession(hub));
  return { hub, heard, port, give: (loop: 'writer' | 'store', command: number) => commands.give(hub, loop, command) };
}

test.each([
  ['writer', 'exit', 'WRITER_DIED'],
  ['writer', 'throw', 'WRITER_DIED'],
  ['store', 'exit', 'STORE_WORKER_DIED'],
  ['store', 'throw', 'STORE_WORKER_DIED'],
] as const)('the %s ends by %s: replaced, its sessions served again, one event each way', async (loop, how, code) => {
  const { hub, heard, port, give } = await start();
  expect(hub.persistence).toBe('on');
  give(loop, COMMAND[how]);
  await heard.next(is('degraded', code));
  await heard.next(is('recovered', code));
  await heard.next(isNote(new RegExp(`${loop} life 2 attached 1`)));
  expect(heard.codes()).toEqual([`degraded ${code}`, `recovered ${code}`]);
  expect(hub.control[loop].life).toBe(2);
  expect(hub.persistence).toBe('on');
  expect(await hub.detachSession(1, 10_000)).toBe(true);
  expect(await hub.release(10_000)).toEqual({ drained: true, stuck: [] });
  port.close();
});

test('lives that end at once: one degradation, then one recovery', async () => {
  const commands = obedient({ writer: { stillborn: 4 } });
  const hub = (await openHub(tempDir('hub'), commands.tuning)).hub!;
  const heard = listen(hub);
  // Attaching waits for a life that serves.
  const port = await hub.attachSession(newSession(hub));
  await heard.next(isNote(/writer life 5 attached 1/));
  expect(heard.codes()).toEqual(['degraded WRITER_DIED', 'recovered WRITER_DIED']);
  port.close();
});

test('loops that never get to run: attaching ends with a code, and so does the hub', async () => {
  const commands = obedient({ store: { stillborn: 1e9 } });
  const hub = (await openHub(tempDir('hub'), { ...commands.tuning, attachMs: 500 })).hub!;
  const heard = listen(hub);
  await expect(hub.attachSession(newSession(hub))).rejects.toMatchObject({ code: 'STORE_WORKER_DIED', message: expect.stringContaining('within 500 ms') });
  await heard.next(is('degraded', 'STORE_WORKER_DIED'));
  expect(hub.persistence).toBe('degraded');
  expect(await hub.release(100)).toMatchObject({ stuck: [] });
});

test('a session of which the dead held a lock is closed and told; the others go on with the next life', async () => {
  const { hub, heard, port, give } = await start();
  const second = newSession(hub);
  const port2 = await hub.attachSession(second);
  const lost = once(hub, 'lost');
  give('writer', COMMAND.dieWithLock);
  expect((await lost)[0]).toMatchObject({ session: 1, lock: 'pending', thread: 'snapshot-writer', site: 'on purpose', failed: 0 });
  await heard.next(isNote(/writer life 2 attached 2/));
  expect(heard.events.some(isNote(/writer life 2 attached 1/))).toBe(false);
  expect(hub.sessions.map((session) => session.state)).toEqual(['failed', 'open']);
  expect(hub.pending).toBe(false);
  for (const number of [1, 2]) expect(await hub.detachSession(number, 10_000)).toBe(true);
  for (const p of [port, port2]) p.close();
});

test('a death while main is busy is dealt with before main comes back', async () => {
  const { hub, give, port } = await start();
  const pause = new Int32Array(new SharedArrayBuffer(4));
  give('writer', COMMAND.exit);
  // No event of main is handled in here. Bounded: the test fails when the time is not enough.
  for (let i = 0; i < 1_000 && !(hub.control.writer.life === 2 && hub.control.writer.state === 'running'); i++) Atomics.wait(pause, 0, 0, 10);
  expect([hub.control.writer.life, hub.control.writer.state]).toEqual([2, 'running']);
  port.close();
});

test('what an engine posts reaches the loops it names', async () => {
  const { heard, port } = await start();
  port.postMessage({ to: 'both', message: { type: 'buffer', session: 1, key: 9, buffer: new SharedArrayBuffer(64) } });
  port.postMessage({ to: 'writer', message: { type: 'buffer', session: 1, key: 10, buffer: new SharedArrayBuffer(32) } });
  await heard.next(isNote(/store got buffer 9 of 64 bytes/));
  await heard.next(isNote(/writer got buffer 9 of 64 bytes/));
  await heard.next(isNote(/writer got buffer 10 of 32 bytes/));
  expect(heard.events.some(isNote(/store got buffer 10/))).toBe(false);
  port.close();
});

test('a degradation is told to who opens later, and events of the time before anybody listened are kept', async () => {
  const commands = obedient();
  const dir = tempDir('hub');
  const hub = (await openHub(dir, commands.tuning)).hub!;
  const port = await hub.attachSession(newSession(hub));
  commands.give(hub, 'store', COMMAND.degrade);
  while (hub.persistence !== 'degraded') await new Promise((resolve) => setTimeout(resolve, 2));
  const heard = listen(hub);
  await heard.next(is('degraded', 'CACHE_FULL'));
  expect((await openHub(dir, commands.tuning)).degraded).toMatchObject({ code: 'CACHE_FULL' });
  port.close();
});

test('the keeper dies with both loops: all three come again and serve what was there', async () => {
  const workers: Worker[] = [];
  const seen = (worker: Worker) => workers.push(worker);
  process.on('worker', seen);
  const { hub, heard, port } = await start();
  process.off('worker', seen);
  expect(workers).toHaveLength(1);
  hub.ref();
  await workers[0]!.terminate();
  await heard.next(is('degraded', 'STORE_WORKER_DIED'));
  await heard.next(isNote(/store life 2 attached 1/));
  await heard.next(isNote(/writer life 2 attached 1/));
  hub.unref();
  expect(heard.codes()).toEqual(['degraded STORE_WORKER_DIED', 'recovered STORE_WORKER_DIED']);
  expect(await hub.detachSession(1, 10_000)).toBe(true);
  expect(await hub.release(10_000)).toEqual({ drained: true, stuck: [] });
  port.close();
});
