/**
 * The README's example of `tidemark/store`, as it stands there, in an app of its own that has the package installed without MLX.
 *
 * Must not happen: an example that does not run or compile, a store that asks for MLX, one that writes a folder it cannot lock.
 */
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type ChildResult, runNode } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

const README = readFileSync(join(ROOT, 'README.md'), 'utf8');
const CORE = 'build/Release/tidemark_core.node';

/** The code blocks of the section, by the file name in their first line. */
function example(): Map<string, string> {
  const section = README.slice(README.indexOf('## The store alone'), README.indexOf('## Command line'));
  return new Map([...section.matchAll(/```js\n\/\/ (\S+)\n([\s\S]*?)```/g)].map(([, name, code]) => [name!, code!]));
}

/** An app with the package as `npm install` leaves it where MLX cannot be had; `core`: whether that addon was built. */
function app(core: boolean): string {
  const dir = tempDir('store-app');
  const installed = join(dir, 'node_modules/tidemark');
  mkdirSync(join(installed, dirname(CORE)), { recursive: true });
  cpSync(join(ROOT, 'package.json'), join(installed, 'package.json'));
  cpSync(join(ROOT, 'dist'), join(installed, 'dist'), { recursive: true });
  symlinkSync(join(ROOT, 'node_modules'), join(installed, 'node_modules'));
  if (core) cpSync(join(ROOT, CORE), join(installed, CORE));
  writeFileSync(join(dir, 'package.json'), JSON.stringify({ name: 'app', private: true, type: 'module' }));
  for (const [name, code] of example()) writeFileSync(join(dir, name), code);
  return dir;
}

async function start(dir: string): Promise<string[]> {
  // A model path that cannot be: whatever looks for MLX must not find one elsewhere.
  const ended: ChildResult = await runNode(['main.js'], { cwd: dir, env: { MLX_ROOT: join(dir, 'no-mlx') }, timeoutMs: 50_000 });
  expect(ended, ended.stderr).toMatchObject({ code: 0, stderr: '', timedOut: false });
  return ended.stdout.trim().split('\n');
}

const SUM = `the sum is ${Array.from({ length: 40 }, (_, i) => i * i).reduce((a, b) => a + b)}`;
const DURABLE = [16, 32, 40].map((count) => `on disk up to token ${count}`);

describe('without MLX', () => {
  test('the example stores, and its second run finds everything', { timeout: 120_000 }, async () => {
    const dir = app(true);
    expect(existsSync(join(dir, 'node_modules/tidemark/build/Release/tidemark_mlx.node'))).toBe(false);
    expect([...example().keys()]).toEqual(['main.js', 'worker.js']);
    const first = await start(dir);
    expect([...first].sort()).toEqual(['found 0 of 40 tokens', SUM, ...DURABLE].sort());
    expect(first.filter((line) => line.startsWith('on disk'))).toEqual(DURABLE);
    expect(listTree(join(dir, 'cache')).filter((path) => path.endsWith('.kv.safetensors'))).toHaveLength(3);
    expect(await start(dir)).toEqual(['found 40 of 40 tokens', SUM]);
  });

  test('the engine says what is missing', async () => {
    const dir = app(true);
    const code = `import { createEngine } from 'tidemark'; await createEngine({ model: '.', cache: false }).catch((error) => console.log(error.code));`;
    const { stdout } = await runNode(['--input-type=module', '-e', code], { cwd: dir });
    expect(stdout).toBe('MLX_UNAVAILABLE\n');
  });
});

test('without the core addon either, a folder is read and not written', { timeout: 180_000 }, async () => {
  const [writer, reader] = [app(true), app(false)];
  await start(writer);
  cpSync(join(writer, 'cache'), join(reader, 'cache'), { recursive: true });
  const before = listTree(join(reader, 'cache')).filter((path) => path.startsWith('blocks/'));
  const [degraded, ...rest] = await start(reader);
  expect(degraded).toMatch(/^LOCK_UNSUPPORTED .*tidemark_core\.node was not built/);
  expect(rest).toEqual(['found 40 of 40 tokens', SUM]);
  expect(listTree(join(reader, 'cache')).filter((path) => path.startsWith('blocks/'))).toEqual(before);

  const empty = app(false);
  const lines = await start(empty);
  expect(lines.slice(1)).toEqual(['found 0 of 40 tokens', ...Array(3).fill('not stored: read-only'), SUM]);
});

test('the example compiles against the types that the package exports', async () => {
  const dir = app(false);
  const require = createRequire(import.meta.url);
  const tsc = join(dirname(require.resolve('typescript/package.json')), 'bin/tsc');
  const options = ['--noEmit', '--allowJs', '--checkJs', '--skipLibCheck', '--strict', 'false', '--target', 'es2023', '--module', 'nodenext'];
  const types = ['--types', 'node', '--typeRoots', join(ROOT, 'node_modules/@types')];
  const compile = () => runNode([tsc, ...options, ...types, 'main.js', 'worker.js'], { cwd: dir });
  expect(await compile()).toMatchObject({ code: 0, stdout: '' });
  writeFileSync(join(dir, 'worker.js'), example().get('worker.js')!.replace("requestId: 'chat-1'", 'requestId: 1'));
  expect((await compile()).stdout).toContain("Type 'number' is not assignable to type 'string'");
});
