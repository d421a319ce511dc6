// Where the install script takes MLX from, and what it says when there is none. Nothing here goes to the network.
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test, vi } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

interface Found {
  root: string;
  version: string;
  backend: string;
  source: string;
}
const { findMlx, inspect } = (await import(join(ROOT, 'scripts/find-mlx.mjs'))) as {
  findMlx(options: { pins: unknown; vendor: string; notes: string[]; log: (text: string) => void }): Found | null;
  inspect(root: string, version: string): { problem: string } | { version: string; backend: string };
};
const { unpackWheel } = (await import(join(ROOT, 'scripts/wheel.mjs'))) as {
  unpackWheel(pin: Record<string, string>, target: string, log: (text: string) => void): string;
};
const pins = JSON.parse(readFileSync(join(ROOT, 'scripts/mlx-pins.json'), 'utf8')) as { version: string; wheels: Record<string, Record<string, string>> };

/** A folder that looks like an MLX package. */
function fakeMlx(version: string, options: { backend?: 'cuda' | 'metal'; library?: boolean } = {}): string {
  const root = join(tempDir('mlx'), 'mlx');
  mkdirSync(join(root, 'lib'), { recursive: true });
  mkdirSync(join(root, 'include/mlx'), { recursive: true });
  const [major, minor, patch] = version.split('.');
  writeFileSync(
    join(root, 'include/mlx/version.h'),
    `#define MLX_VERSION_MAJOR ${major}\n#define MLX_VERSION_MINOR ${minor}\n#define MLX_VERSION_PATCH ${patch}\n`,
  );
  if (options.library !== false) writeFileSync(join(root, 'lib/libmlx.so'), '');
  if (options.backend === 'metal') writeFileSync(join(root, 'lib/mlx.metallib'), '');
  if (options.backend === 'cuda') mkdirSync(join(root, '../mlx_cuda_13-0.32.4.dist-info'));
  return root;
}

/** A python3 for PATH that runs a shell script. */
function fakePython(script: string): string {
  const dir = tempDir('python');
  writeFileSync(join(dir, 'python3'), `#!/bin/sh\n${script}\n`);
  chmodSync(join(dir, 'python3'), 0o755);
  return dir;
}

let notes: string[];
const find = (): Found | null => findMlx({ pins, vendor: join(tempDir('vendor'), 'v'), notes, log: () => undefined });

beforeEach(() => {
  notes = [];
  vi.unstubAllEnvs();
  vi.stubEnv('MLX_ROOT', '');
  vi.stubEnv('TIDEMARK_MLX', '');
});

describe.runIf(process.platform === 'linux' && process.arch === 'x64')('the order', () => {
  test('MLX_ROOT first', () => {
    const root = fakeMlx('0.32.4');
    vi.stubEnv('MLX_ROOT', root);
    vi.stubEnv('PATH', fakePython('echo /nowhere'));
    expect(find()).toEqual({ root, version: '0.32.4', backend: 'cpu', source: 'MLX_ROOT' });
    expect(notes).toEqual([]);
  });

  test('an installed Python package next, also when MLX_ROOT is of another version', () => {
    const installed = fakeMlx('0.32.4');
    vi.stubEnv('MLX_ROOT', fakeMlx('0.31.0'));
    vi.stubEnv('PATH', fakePython(`echo ${installed}`));
    expect(find()).toMatchObject({ root: installed, source: 'Python package' });
    expect(notes.join()).toContain('is MLX 0.31.0, 0.32.4 is needed');
  });

  test('then the wheel: another version installed is said, a failing pip is said, and there is no MLX', () => {
    const other = fakeMlx('0.30.1');
    vi.stubEnv('PATH', `${fakePython(`case "$1" in -c) echo ${other};; *) echo "ERROR: no network" >&2; exit 1;; esac`)}`);
    expect(find()).toBeNull();
    expect(notes.join('\n')).toContain('is MLX 0.30.1');
    expect(notes.join('\n')).toContain('mlx-cpu 0.32.4 could not be had: ERROR: no network');
  });

  test('no python3 at all', () => {
    vi.stubEnv('PATH', tempDir('empty'));
    expect(find()).toBeNull();
    expect(notes.join()).toContain('python3 was not found');
  });

  test('an installed CPU package is not taken when CUDA is asked for', () => {
    vi.stubEnv('TIDEMARK_MLX', 'cuda');
    vi.stubEnv('PATH', fakePython(`case "$1" in -c) echo ${fakeMlx('0.32.4')};; *) exit 1;; esac`));
    expect(find()).toBeNull();
    expect(notes.join()).toContain('mlx-cuda-13');
    const cuda = fakeMlx('0.32.4', { backend: 'cuda' });
    vi.stubEnv('PATH', fakePython(`echo ${cuda}`));
    expect(find()).toMatchObject({ root: cuda, backend: 'cuda' });
  });

  test('a backend that does not exist', () => {
    vi.stubEnv('TIDEMARK_MLX', 'tpu');
    expect(find()).toBeNull();
    expect(notes.join()).toContain("'tpu'");
  });
});

test('a package without a library is none', () => {
  expect(inspect(fakeMlx('0.32.4', { library: false }), '0.32.4')).toEqual({ problem: 'has no lib/libmlx' });
  expect(inspect(fakeMlx('0.32.4', { backend: 'metal' }), '0.32.4')).toMatchObject({ backend: 'metal' });
  expect(inspect(tempDir('mlx'), '0.32.4')).toHaveProperty('problem');
});

describe('a wheel', () => {
  const pin = { package: 'some', version: '1', platform: 'any', file: 'some-1.whl', sha256: '0'.repeat(64) };

  test('whose hash is not the pinned one is not unpacked', () => {
    const target = join(tempDir('vendor'), 'some');
    vi.stubEnv('PATH', `${fakePython('for last; do previous=$dest; dest=$last; done; echo junk > "$previous/some-1.whl"')}:${process.env.PATH}`);
    expect(() => unpackWheel(pin, target, () => undefined)).toThrow(/has SHA-256 .* pinned is 000/);
    expect(existsSync(target)).toBe(false);
  });

  test('that is there already is not fetched again; a folder that was cut short is', () => {
    const target = join(tempDir('vendor'), 'some');
    mkdirSync(target);
    vi.stubEnv('PATH', fakePython('exit 1'));
    expect(() => unpackWheel(pin, target, () => undefined)).toThrow();
    writeFileSync(join(target, '.complete'), `${pin.sha256}\n`);
    expect(unpackWheel(pin, target, () => undefined)).toBe(target);
  });

  test('every pin has a hash and belongs to the one version', () => {
    for (const wheel of Object.values(pins.wheels)) {
      expect(wheel.sha256).toMatch(/^[0-9a-f]{64}$/);
      expect(wheel.file).toContain(`-${pins.version}-`);
      expect(wheel.file).toContain(wheel.platform);
    }
  });
});

test('without the addon the error says what to do', async () => {
  // The binding looks beside its package; a copy elsewhere finds nothing.
  const dir = tempDir('bare');
  mkdirSync(join(dir, 'dist/engine-thread/mlx'), { recursive: true });
  mkdirSync(join(dir, 'dist/shared'), { recursive: true });
  for (const file of ['dist/engine-thread/mlx/binding.js', 'dist/shared/native-core.js', 'dist/shared/errors.js'])
    writeFileSync(join(dir, file), readFileSync(join(ROOT, file)));
  writeFileSync(join(dir, 'package.json'), '{"type":"module"}');
  mkdirSync(join(dir, 'build'));
  writeFileSync(join(dir, 'build/mlx-build.json'), JSON.stringify({ mlx: null, blas: null, notes: ['python3 was not found.'] }));
  const script = `const b = await import(${JSON.stringify(join(dir, 'dist/engine-thread/mlx/binding.js'))}); try { b.mlx() } catch (e) { console.log(e.code, e.message) }
    Object.defineProperty(process, 'platform', { value: 'win32' }); try { b.mlx() } catch (e) { console.log(e.code, e.message) }`;
  const { stdout } = await runNode(['--input-type=module', '-e', script]);
  const [first, second] = stdout.split('\n');
  expect(first).toMatch(/^MLX_UNAVAILABLE .*python3 was not found.*MLX_ROOT.*npm rebuild tidemark/);
  expect(second).toMatch(/^PLATFORM_UNSUPPORTED .*win32/);
});
