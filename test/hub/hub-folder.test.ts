/**
 * Folders that cannot be used as they should. What must not happen: an error instead of one degradation with its code, a
 * file written where there must be none, a link followed.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { processRegistry } from '../../dist/host/process-registry.js';
import { spawnLines } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { closeHubsAfterEach, newSession, openHub } from './hub.ts';

closeHubsAfterEach();

const mounts: string[] = [];
afterEach(() => {
  for (const dir of mounts.splice(0)) spawnSync('umount', ['-l', dir]);
});
const mountable = (() => {
  const dir = tempDir('mount');
  const ok = process.platform === 'linux' && spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', dir]).status === 0;
  if (ok) spawnSync('umount', [dir]);
  return ok;
})();
if (!mountable) console.log('hub-folder: tests on read-only mounts are skipped: this user may not mount a tmpfs');

function mount(options: string): string {
  const dir = tempDir('mount');
  const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', dir]);
  if (status !== 0) throw new Error(String(stderr));
  mounts.push(dir);
  return dir;
}

test('a file in the place of the folder, or above it: CACHE_DIR_UNUSABLE, no store', async () => {
  const file = join(tempDir('hub'), 'file');
  writeFileSync(file, 'mine');
  for (const dir of [file, join(file, 'below')]) {
    const { hub, degraded } = await openHub(dir);
    expect(hub).toBeNull();
    expect(degraded).toMatchObject({ code: 'CACHE_DIR_UNUSABLE', details: { path: dir } });
  }
  expect(readFileSync(file, 'utf8')).toBe('mine');
});

test('a dangling link in the place of the folder: CACHE_DIR_UNUSABLE', async () => {
  const link = join(tempDir('hub'), 'link');
  symlinkSync(join(link, '..', 'nowhere'), link);
  expect(await openHub(link)).toMatchObject({ hub: null, degraded: { code: 'CACHE_DIR_UNUSABLE' } });
});

test('a link in the place of the lock is not followed: read-only', async () => {
  const dir = tempDir('hub');
  const target = join(tempDir('hub'), 'target');
  symlinkSync(target, join(dir, 'lock'));
  const { hub, degraded } = await openHub(dir);
  expect(hub!.mode).toBe('read-only');
  expect(degraded).toMatchObject({ code: 'CACHE_READ_ONLY' });
  expect(existsSync(target)).toBe(false);
});

describe.skipIf(!mountable)('read-only file systems', () => {
  test('an existing folder: CACHE_READ_ONLY, sessions are served by the store worker alone', async () => {
    const root = mount('size=1m');
    const dir = join(root, 'cache');
    mkdirSync(dir);
    spawnSync('mount', ['-o', 'remount,ro', root]);
    const { hub, degraded } = await openHub(dir);
    expect(degraded).toMatchObject({ code: 'CACHE_READ_ONLY' });
    expect(hub).toMatchObject({ mode: 'read-only', persistence: 'read-only' });
    const port = await hub!.attachSession(newSession(hub!));
    const alive = processRegistry()
      .threads.list()
      .filter((t) => t.state === 'alive')
      .map((t) => t.kind);
    expect(alive).toContain('store-worker');
    expect(alive).not.toContain('snapshot-writer');
    expect(await hub!.release(10_000)).toEqual({ drained: true, stuck: [] });
    port.close();
    expect(listTree(dir)).toEqual([]);
  });

  test('a folder that would have to be made: CACHE_DIR_UNUSABLE', async () => {
    expect(await openHub(join(mount('ro'), 'cache'))).toMatchObject({ hub: null, degraded: { code: 'CACHE_DIR_UNUSABLE', details: { errno: 'EROFS' } } });
  });
});

describe('a second process', () => {
  const open = (dir: string) => `
    import { processRegistry } from '${ROOT}dist/host/process-registry.js';
    import { openStoreHub } from '${ROOT}dist/host/store-hub.js';
    const { hub, degraded } = await openStoreHub(processRegistry(), { dir: ${JSON.stringify(dir)}, maxBytes: 1e9, blockSize: 256 });
    console.log(JSON.stringify({ mode: hub.mode, code: degraded?.code ?? null }));
    setInterval(() => 0, 1000);`;
  const start = (dir: string) => spawnLines(['--input-type=module', '-e', open(dir)]);

  test('only reads (CACHE_LOCKED), until the first is gone, however it ended', async () => {
    const dir = tempDir('hub');
    const first = start(dir);
    expect(await first.next()).toEqual({ mode: 'writer', code: null });
    const second = start(dir);
    expect(await second.next()).toEqual({ mode: 'read-only', code: 'CACHE_LOCKED' });
    const { hub, degraded } = await openHub(dir);
    expect(degraded).toMatchObject({ code: 'CACHE_LOCKED', message: expect.stringContaining('Another process') });
    await hub!.release(10_000);
    first.kill();
    await first.ended;
    const third = start(dir);
    expect(await third.next()).toEqual({ mode: 'writer', code: null });
  });
});
