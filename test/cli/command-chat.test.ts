/**
 * `tidemark chat` with the real engine. What must not happen: a turn that reads the whole conversation again, or Ctrl-C
 * at a terminal that ends the program.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { run } from '../helpers/child.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { CLI, ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { GREEDY, parseLines, tidemark } from './command.ts';

watchLeaks();
const python = spawnSync('python3', ['-c', 'import pty']).status === 0;

test('each turn finds the one before in the cache', async () => {
  const cache = join(tempDir(), 'cache');
  const input = 'What is a file system?\nAnd what is a kernel?\nThanks.\n';
  const { code, stdout } = await tidemark(['chat', ...GREEDY, '--cache', cache, '--max-tokens', '20', '--json'], { input });
  expect(code).toBe(0);
  const usage = parseLines(stdout)
    .filter((event) => event.type === 'result')
    .map((event) => event.usage as { promptTokens: number; cachedTokens: number });
  expect(usage).toHaveLength(3);
  expect(usage[0]!.cachedTokens).toBe(0);
  for (const i of [1, 2]) expect(usage[i]!.cachedTokens).toBeGreaterThanOrEqual(usage[i - 1]!.promptTokens - 1);
});

test.runIf(python)('at a terminal: Ctrl-C stops the answer, a typed line, and at the second time at an empty prompt the program', async () => {
  const cache = join(tempDir(), 'cache');
  const args = [join(ROOT, 'test/cli/terminal.py'), process.execPath, CLI, 'chat', ...GREEDY, '--cache', cache, '--max-tokens', '2000'];
  const { stdout, code } = await run('python3', args, { timeoutMs: 55_000, env: { TERM: 'xterm' } });
  expect([code, stdout.trim().split('\n')]).toEqual([
    0,
    ['prompt shown', 'loading shown', 'answer began', 'answer stopped, prompt shown', 'typed line dropped', 'asked to leave twice', 'left with 130'],
  ]);
});
