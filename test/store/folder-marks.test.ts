/**
 * A cache folder says to backup and search programs that it is one. What must not happen: an app's own files left out of its backups
 * because a cache lies beside them; a mark that the size limit, `cache stat` or `cache purge` take for a stranger's file.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { BlockPaths } from '../../src/shared/blocks/paths.ts';
import { Files } from '../../src/shared/files.ts';
import { loadNativeCore } from '../../src/shared/native-core.ts';
import { BACKUP_ATTRIBUTE, BACKUP_VALUE, CACHE_TAG, markCacheFolder, NEVER_INDEX } from '../../src/store-worker/folder-marks.ts';
import { otherBytes } from '../../src/store-worker/walk.ts';
import { cli } from '../cli/harness.ts';
import { cacheIn, GREEDY, openEngine, promptIds, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

/** Attributes in memory: what a Mac's file system keeps. */
function attributes(errno = 0) {
  const set = new Map<string, string>();
  return {
    set,
    getAttribute: (path: string, name: string) => set.get(`${path} ${name}`) ?? null,
    setAttribute(path: string, name: string, bytes: Uint8Array) {
      if (errno === 0) set.set(`${path} ${name}`, Buffer.from(bytes).toString('latin1'));
      return errno;
    },
  };
}

const mark = (dir: string, platform: NodeJS.Platform = 'linux', core = attributes()) => markCacheFolder(new Files(), dir, platform, core);

describe('marks', () => {
  test('CACHEDIR.TAG begins with its signature, and tar knows it', () => {
    const dir = join(tempDir(), 'cache');
    mkdirSync(join(dir, 'blocks'), { recursive: true });
    writeFileSync(join(dir, 'blocks/data'), 'x');
    expect(mark(dir)).toBeNull();
    expect(readFileSync(join(dir, CACHE_TAG), 'latin1').slice(0, 43)).toBe('Signature: 8a477f597d28d172789f06886806bc55');
    expect(statSync(join(dir, CACHE_TAG)).mode & 0o777).toBe(0o600);
    const packed = execFileSync('tar', ['-c', '--exclude-caches-all', '-C', dir, '..'], { stdio: ['ignore', 'pipe', 'ignore'] });
    expect(packed.includes('blocks/data')).toBe(false);
    expect(existsSync(join(dir, NEVER_INDEX))).toBe(false);
    expect(mark(dir)).toBeNull();
  });

  test('on a Mac also for Spotlight and Time Machine', () => {
    const dir = tempDir();
    const core = attributes();
    expect(mark(dir, 'darwin', core)).toBeNull();
    expect(existsSync(join(dir, NEVER_INDEX))).toBe(true);
    expect([...core.set.keys()]).toEqual([`${dir} ${BACKUP_ATTRIBUTE}`]);
    // What `tmutil addexclusion` writes, byte for byte.
    expect(Buffer.from(BACKUP_VALUE).toString('hex')).toBe(
      '62706c6973743030' +
        '5f1011' +
        Buffer.from('com.apple.backupd').toString('hex') +
        '08' +
        '000000000000' +
        '0101' +
        '0000000000000001' +
        '0000000000000000' +
        '000000000000001c',
    );
    expect(mark(dir, 'darwin', core)).toBeNull();
  });

  test('a folder with files of others is not marked', () => {
    const dir = tempDir();
    writeFileSync(join(dir, 'letters.txt'), '');
    const core = attributes();
    expect(mark(dir, 'darwin', core)).toBeNull();
    expect([existsSync(join(dir, CACHE_TAG)), existsSync(join(dir, NEVER_INDEX)), core.set.size]).toEqual([false, false, 0]);
  });

  test('what keeps a mark away is said; a file system without attributes and a full disk are not', () => {
    expect(mark(tempDir(), 'darwin', attributes(1))).toContain('errno 1');
    expect(mark(tempDir(), 'darwin', attributes(45))).toBeNull();
    const fails = (code: string) =>
      markCacheFolder(
        new Files({
          before(operation) {
            if (operation === 'create') throw Object.assign(new Error(`${code}: no`), { code });
          },
        }),
        tempDir(),
        'linux',
        null,
      );
    expect(fails('ENOSPC')).toBeNull();
    expect(fails('EACCES')).toContain('EACCES');
  });
});

test('attributes of real files are set and read', () => {
  const core = loadNativeCore()!;
  const dir = tempDir();
  const bytes = Uint8Array.from([0, 1, 0xff, 0x41]);
  const name = process.platform === 'darwin' ? BACKUP_ATTRIBUTE : 'user.tidemark.test';
  expect(core.getAttribute(dir, name)).toBeNull();
  const errno = core.setAttribute(dir, name, bytes);
  if (errno === 95) return console.log('no extended attributes on this file system');
  expect(errno).toBe(0);
  expect(core.getAttribute(dir, name)).toBe('\0\x01\xffA');
  expect(core.setAttribute(join(dir, 'none'), name, bytes)).toBe(2);
});

test('an engine marks its folder; the mark counts, is no stranger, and goes with purge', async () => {
  const dir = join(tempDir(), 'cache');
  const engine = await openEngine({ cache: cacheIn(dir) });
  await engine.complete({ tokens: promptIds(40), ...GREEDY, maxTokens: 2 });
  await engine.flush();
  await engine.close();
  const tag = join(dir, CACHE_TAG);
  expect(existsSync(tag)).toBe(true);
  const before = otherBytes(new BlockPaths(dir));
  const stat = JSON.parse((await cli(['cache', 'stat', '--cache', dir, '--json'])).stdout) as { kinds: Record<string, { files: number }> };
  expect(stat.kinds.mark!.files).toBe(process.platform === 'darwin' ? 2 : 1);
  expect(stat.kinds.foreign).toBeUndefined();
  expect((await cli(['cache', 'purge', '--all', '--yes', '--cache', dir])).code).toBe(0);
  expect(existsSync(tag)).toBe(false);
  rmSync(join(dir, 'index.sqlite'), { force: true });
  expect(otherBytes(new BlockPaths(dir))).toBeLessThan(before);
});
