/**
 * `tidemark doctor`. What must not happen: a missing part that is called fine, or a folder made by looking.
 */
import { chmodSync, existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Finding } from '../../src/cli/doctor.ts';
import { checkCacheDir } from '../../src/cli/doctor-cache.ts';
import { checkEnvironment, checkNode, checkPlatform } from '../../src/cli/doctor-system.ts';
import { runNode } from '../helpers/child.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { CLI } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchLeaks();
const status = (finding: Finding) => finding.status;

describe('the system', () => {
  test.each([
    ['20.17.0', 'ok'],
    ['20.16.0', 'missing'],
    ['18.20.0', 'missing'],
    ['22.1.0', 'ok'],
  ])('Node.js %s is %s', (version, expected) => expect(status(checkNode(version))).toBe(expected));

  test.each([
    ['linux', 'x64', 'ok'],
    ['linux', 'arm64', 'ok'],
    ['darwin', 'arm64', 'ok'],
    ['darwin', 'x64', 'missing'],
    ['win32', 'x64', 'missing'],
  ])('%s %s is %s', (platform, arch, expected) => expect(status(checkPlatform(platform, arch))).toBe(expected));

  test('MLX_METAL_FAST_SYNCH is warned of when it is set', () => {
    expect(checkEnvironment({})).toEqual([]);
    expect(checkEnvironment({ MLX_METAL_FAST_SYNCH: '0' })).toEqual([]);
    expect(checkEnvironment({ MLX_METAL_FAST_SYNCH: '1' })).toMatchObject([{ name: 'MLX_METAL_FAST_SYNCH', status: 'warning' }]);
  });
});

describe('the cache folder', () => {
  test('one that is not there is fine, and is not made', () => {
    const dir = join(tempDir(), 'a', 'b');
    expect(checkCacheDir(dir).map(status)).toEqual(['ok', 'ok']);
    expect(existsSync(dir)).toBe(false);
  });

  test('one that is there is tried out, and left as it was', () => {
    const dir = tempDir();
    const findings = checkCacheDir(dir);
    expect(findings.map(({ name, status }) => [name, status])).toEqual([
      ['cache folder', 'ok'],
      ['free space', expect.any(String)],
      ['file lock', 'ok'],
    ]);
    expect(listTree(dir)).toEqual([]);
  });

  test('a file in its place is a warning', () => {
    const file = join(tempDir(), 'file');
    writeFileSync(file, '');
    expect(checkCacheDir(file)).toMatchObject([{ status: 'warning', found: expect.stringMatching(/is not a folder/) }]);
  });

  // Root may write everywhere.
  test.skipIf(process.getuid?.() === 0)('one that cannot be written is a warning', () => {
    const dir = tempDir();
    chmodSync(dir, 0o500);
    expect(checkCacheDir(dir)[0]).toMatchObject({ status: 'warning', details: { errno: 'EACCES' } });
  });
});

describe('the command', () => {
  test('reports MLX as a thread that loads it sees it, exit code by what is missing', async () => {
    const dir = tempDir();
    const { code, stdout, stderr } = await runNode([CLI, 'doctor', '--json', '--cache', dir], { timeoutMs: 60_000, env: { MLX_METAL_FAST_SYNCH: undefined } });
    expect(stderr).toBe('');
    const { ok, findings } = JSON.parse(stdout) as { ok: boolean; findings: Finding[] };
    expect(code).toBe(ok ? 0 : 1);
    expect(ok).toBe(findings.every((finding) => finding.status !== 'missing'));
    expect(findings.map(({ name }) => name)).toEqual(
      expect.arrayContaining(['node', 'platform', 'native core', 'MLX', 'cache folder', 'free space', 'file lock']),
    );
    const mlx = findings.find(({ name }) => name === 'MLX')!;
    if (mlx.status === 'ok') expect(findings.map(({ name }) => name)).toEqual(expect.arrayContaining(['device', 'BLAS']));
    else expect(mlx.advice).toMatch(/install/);
    expect(listTree(dir)).toEqual([]);
  });
});
