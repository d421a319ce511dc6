/**
 * `npm run check:metal` as far as it can be shown without a Mac: its points on the CPU. What must not happen: a PASS for something that
 * was not looked at, an exit code of 0 on a machine that is no Mac.
 */
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

const isMac = process.platform === 'darwin' && process.arch === 'arm64';
const check = (args: string[], root = ROOT) => runNode([join(root, 'scripts/check-metal.mjs'), ...args], { timeoutMs: 110_000 });

/** The repository with some of its files changed: what is not changed is linked. */
function changedCopy(change: { file: string; find: string; replace: string }): string {
  const root = tempDir('check');
  for (const name of ['build', 'models', 'node_modules', 'package.json']) symlinkSync(join(ROOT, name), join(root, name));
  for (const name of ['dist', 'scripts']) cpSync(join(ROOT, name), join(root, name), { recursive: true });
  mkdirSync(join(root, 'reports'));
  const file = join(root, change.file);
  const text = readFileSync(file, 'utf8');
  expect(text).toContain(change.find);
  writeFileSync(file, text.replace(change.find, change.replace));
  return root;
}

test.skipIf(isMac)('anywhere else than on a Mac it says so and is no success', async () => {
  const { code, stdout, stderr } = await check([]);
  expect(code).toBe(2);
  expect(stdout).toBe('');
  expect(stderr).toContain('check:metal is for Macs');
});

test.each([
  ['--device', 'tpu'],
  ['--only', 'nothing'],
  ['--rounds', '0'],
])('%s %s is refused', async (...args) => {
  const { code, stderr } = await check(args);
  expect(code).toBe(2);
  expect(stderr).toContain('usage:');
});

test('every point that needs no Mac passes on the CPU', { timeout: 120_000 }, async () => {
  const { code, stdout, stderr } = await check(['--device', 'cpu', '--rounds', '1']);
  expect(stderr).toBe('');
  const lines = stdout.trim().split('\n');
  const of = (outcome: string) => lines.filter((line) => line.startsWith(`${outcome} `)).map((line) => line.slice(5).split(':')[0]);
  expect(of('PASS')).toEqual(['wheel found', 'device computes', 'stream errors', 'clear timing', 'teardown', 'golden logits', 'restart']);
  expect(of('SKIP')).toEqual(['wheel has Metal', 'metallib loaded', 'Mac specifics']);
  expect(lines.at(-1)).toBe('7 passed, 0 failed, 3 skipped');
  expect(code).toBe(0);
});

describe('a point fails when what it looks at is broken', () => {
  test.each<[string, { file: string; find: string; replace: string }, string]>([
    [
      'clear timing',
      // The clear then meets the whole chain.
      { file: 'dist/engine-thread/mlx/metal-sync.js', find: 'native.synchronize(stream);', replace: '' },
      'the cache is cleared while work is in flight',
    ],
    [
      'golden logits',
      {
        file: 'dist/engine-thread/models/family.js',
        find: "const normEps = text.number(defaults.normEpsField ?? 'rms_norm_eps', { min: 0, max: 1 }, defaults.normEps ?? 1e-6);",
        replace: 'const normEps = 1e-4;',
      },
      "'The kernel schedules'",
    ],
    [
      'stream errors',
      { file: 'scripts/check-device/worker.mjs', find: 'native.testFailOnStream(input, cpu)', replace: 'mx.add(input, 1, cpu)' },
      'a failing step gave no error',
    ],
    [
      'teardown',
      { file: 'scripts/check-device/ending.mjs', find: "if (way === 'main exits') process.exit(0);", replace: "if (way === 'main exits') process.abort();" },
      "'main exits', round 1",
    ],
  ])('%s', async (name, change, message) => {
    const { code, stdout } = await check(['--device', 'cpu', '--rounds', '1', '--only', name], changedCopy(change));
    expect(stdout).toContain(`FAIL ${name}:`);
    expect(stdout).toContain(message);
    expect(code).toBe(1);
  });
});
