/**
 * A store hub from opening to close, with the real loops. What must not happen: a thread, a descriptor or a lock left over, a
 * second hub on one folder, files that others may read.
 */
import { statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { diagnoseProcess } from '../../dist/host/diagnosis.js';
import { processRegistry } from '../../dist/host/process-registry.js';
import { loadNativeCore } from '../../dist/shared/native-core.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { closeHubsAfterEach, newSession, openHub } from './hub.ts';

watchLeaks();
closeHubsAfterEach();
const mode = (path: string) => (statSync(path).mode & 0o777).toString(8);
const core = loadNativeCore();

/** Whether somebody else could take the folder's lock now. */
function lockIsFree(dir: string): boolean {
  const fd = core!.flockTry(join(dir, 'lock'));
  if (typeof fd !== 'number') return false;
  core!.flockRelease(fd);
  return true;
}

test('open, serve a session, close: folder made 0700, lock held meanwhile, nothing left', async () => {
  const dir = join(tempDir('hub'), 'made/on/the/way');
  const { hub, degraded } = await openHub(dir);
  expect(degraded).toBeNull();
  expect(hub!.mode).toBe('writer');
  expect(mode(dir)).toBe('700');
  expect(mode(join(dir, '..'))).toBe('700');
  expect(mode(join(dir, 'lock'))).toBe('600');
  expect(lockIsFree(dir)).toBe(false);

  const memory = newSession(hub!);
  const port = await hub!.attachSession(memory);
  expect(mode(memory.stagingDir)).toBe('700');
  const kinds = () =>
    processRegistry()
      .threads.list()
      .filter((t) => t.state === 'alive')
      .map((t) => t.kind)
      .sort();
  expect(kinds()).toEqual(['keeper', 'main', 'snapshot-writer', 'store-worker']);
  expect(hub!.pending).toBe(false);
  const { threads, locks, cycles } = diagnoseProcess(processRegistry());
  expect(threads.map((t) => t.kind).sort()).toEqual(['keeper', 'main', 'snapshot-writer', 'store-worker']);
  expect(locks.map((l) => l.name)).toEqual(['bufferAccess', 'writerBusy', 'pending', 'pendingCond', 'registry', 'cancelled']);
  expect(cycles).toEqual([]);

  expect(await hub!.detachSession(memory.number, 10_000)).toBe(true);
  expect(listTree(hub!.stagingRoot)).toEqual(['_promote/']);
  expect(await hub!.release(10_000)).toEqual({ drained: true, stuck: [] });
  port.close();
  expect(lockIsFree(dir)).toBe(true);
  expect(kinds()).toEqual(['main']);
  await expect(hub!.attachSession(memory)).rejects.toMatchObject({ code: 'STORE_CLOSED' });
});

test('engines on one folder share one hub, by whatever path, until the last lets go', async () => {
  const dir = tempDir('hub');
  const link = join(tempDir('hub'), 'link');
  symlinkSync(dir, link);
  const [a, b] = await Promise.all([openHub(dir), openHub(link)]);
  expect(b.hub).toBe(a.hub);
  expect(await a.hub!.release(10_000)).toEqual({ drained: true, stuck: [] });
  expect(lockIsFree(dir)).toBe(false);
  const port = await b.hub!.attachSession(newSession(b.hub!));
  await b.hub!.release(10_000);
  port.close();
  expect(lockIsFree(dir)).toBe(true);
});

test('opening while the last one closes waits for it, and writes again', async () => {
  const dir = tempDir('hub');
  const first = (await openHub(dir)).hub!;
  const closed = first.release(10_000);
  const second = await openHub(dir);
  expect(second.hub).not.toBe(first);
  expect(second).toMatchObject({ degraded: null, hub: { mode: 'writer' } });
  await closed;
});

test('two folders are two hubs', async () => {
  const [a, b] = await Promise.all([openHub(tempDir('hub')), openHub(tempDir('hub'))]);
  expect(a.hub).not.toBe(b.hub);
  expect([a.hub!.mode, b.hub!.mode]).toEqual(['writer', 'writer']);
});
