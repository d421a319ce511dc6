/**
 * `tidemark generate` with the real engine. What must not happen: a prompt that is computed again although it is on disk,
 * an interrupt that leaves half a file behind.
 */
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { manualText } from '../../src/cli/demo-prompt.ts';
import type { Completion } from '../../src/host/api.ts';
import { run } from '../helpers/child.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { CLI, TIDE_5M } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { GREEDY, parseLines, tidemark, tidemarkLines } from './command.ts';

watchLeaks();

/** About 700 tokens: three blocks. */
const PROMPT = manualText(56);

test('the same prompt again: one token is computed, the answer is the same', async () => {
  const cache = join(tempDir(), 'cache');
  const args = ['generate', ...GREEDY, '--cache', cache, '--max-tokens', '12', '--json', PROMPT];
  const first = parseLines((await tidemark(args)).stdout);
  const second = parseLines((await tidemark(args)).stdout);
  const resultOf = (events: Record<string, unknown>[]) => events.find((event) => event.type === 'result') as unknown as Completion;
  const [cold, warm] = [resultOf(first), resultOf(second)];
  expect(cold.usage).toMatchObject({ cachedTokens: 0, completionTokens: 12 });
  expect(cold.usage.promptTokens).toBeGreaterThan(600);
  expect(warm.usage).toEqual({ ...cold.usage, cachedTokens: cold.usage.promptTokens - 1 });
  expect(warm.tokenIds).toEqual(cold.tokenIds);
  expect(warm.text).toBe(cold.text);
  expect(first.filter((event) => event.type === 'chunk').flatMap((event) => event.tokenIds)).toEqual(cold.tokenIds);
  const durable = first.filter((event) => event.type === 'durable').map((event) => event.tokenCount);
  expect(durable).toContain(256);
  expect(durable).toContain(cold.usage.promptTokens - 1);
  expect(first.at(-1)).toMatchObject({ type: 'closed', lost: 0 });
});

test('--no-cache makes no file and no folder', async () => {
  const home = tempDir('home');
  const { code, stdout } = await tidemark(['generate', ...GREEDY, '--no-cache', '--max-tokens', '4', 'The kernel'], {
    env: { HOME: home, XDG_CACHE_HOME: join(home, 'x') },
  });
  expect(code).toBe(0);
  expect(stdout.length).toBeGreaterThan(1);
  expect(listTree(home)).toEqual([]);
});

describe('Ctrl-C', () => {
  test.each(['SIGINT', 'SIGTERM'] as const)('%s in the middle of an answer: its exit code, and a folder without a scrap', async (signal) => {
    const cache = join(tempDir(), 'cache');
    const child = tidemarkLines(['generate', ...GREEDY, '--cache', cache, '--max-tokens', '5000', '--json', PROMPT]);
    await child.until((line) => line.type === 'chunk' && (line.index as number) >= 3);
    child.kill(signal);
    expect(await child.ended).toEqual({ code: signal === 'SIGINT' ? 130 : 143, signal: null });
    expect(child.stderr()).toBe(`tidemark: stopped by ${signal} (INTERRUPTED)\n`);
    const scraps = listTree(cache).filter((path) => path.endsWith('.tmp') || (path.startsWith('_boundary_snapshots/') && !path.endsWith('/')));
    expect(scraps).toEqual([]);
    const verify = await tidemark(['cache', 'verify', '--cache', cache, '--json']);
    expect([verify.code, parseLines(verify.stdout)[0]]).toEqual([0, expect.objectContaining({ damaged: [], orphans: 0 })]);
    const again = parseLines((await tidemark(['generate', ...GREEDY, '--cache', cache, '--max-tokens', '1', '--json', PROMPT])).stdout);
    const { usage } = again.find((event) => event.type === 'result') as { usage: { promptTokens: number; cachedTokens: number } };
    expect(usage.cachedTokens).toBe(usage.promptTokens - 1);
  });
});

test('a reader that goes away ends the program', async () => {
  const command = `"${process.execPath}" "${CLI}" generate ${GREEDY.map((arg) => `"${arg}"`).join(' ')} --no-cache --max-tokens 3000 "The kernel" | head -c 20; echo "code \${PIPESTATUS[0]}"`;
  const { stdout } = await run('bash', ['-c', command], { timeoutMs: 50_000 });
  expect(stdout).toMatch(/code 141\n$/);
});

describe('bad input is an error with a code before anything is computed', () => {
  const cases: [string, string[], number, RegExp][] = [
    ['no such folder', ['--model', '/nowhere/model', 'x'], 1, /There is no folder '\/nowhere\/model'.*\(MODEL_NOT_FOUND\)/],
    ['a folder without a model', ['--model', tempFolder(), 'x'], 1, /\(MODEL_CONFIG_INVALID\)|\(MODEL_NOT_FOUND\)/],
    ['an empty prompt', ['--model', TIDE_5M, ''], 1, /\(PROMPT_EMPTY\)/],
    ['a prompt longer than the context', ['--model', TIDE_5M, '--max-context', '64', PROMPT], 1, /\(PROMPT_TOO_LONG\)/],
    ['a negative temperature', ['--model', TIDE_5M, '--temperature', '-1', 'x'], 2, /temperature.*\(INVALID_ARGUMENT\)/],
    ['a top-p of 2', ['--model', TIDE_5M, '--top-p', '2', 'x'], 2, /topP.*\(INVALID_ARGUMENT\)/],
    ['a block size that is no multiple of 16', ['--model', TIDE_5M, '--block-size', '40', 'x'], 2, /blockSize.*\(INVALID_ARGUMENT\)/],
  ];
  test.each(cases)('%s', async (_what, args, code, message) => {
    const cache = args.includes('--block-size') ? ['--cache', join(tempDir(), 'cache')] : ['--no-cache'];
    const result = await tidemark(['generate', ...cache, ...args]);
    expect([result.code, result.stdout]).toEqual([code, '']);
    expect(result.stderr).toMatch(message);
    expect(result.stderr.trimEnd().split('\n')).toHaveLength(1);
  });

  test('an unknown model type names the supported ones', async () => {
    const model = tempDir('model');
    for (const name of ['tokenizer.json', 'tokenizer_config.json']) copyFileSync(join(TIDE_5M, name), join(model, name));
    writeFileSync(join(model, 'config.json'), JSON.stringify({ model_type: 'nonsense' }));
    const { code, stdout } = await tidemark(['generate', '--json', '--no-cache', '--model', model, 'x']);
    expect(code).toBe(1);
    expect(parseLines(stdout)).toEqual([
      { error: { code: 'MODEL_TYPE_UNSUPPORTED', message: expect.stringContaining('qwen3_5'), details: expect.any(Object) } },
    ]);
  });
});

function tempFolder(): string {
  // Any folder of the repository that is no model.
  return join(TIDE_5M, '..');
}
