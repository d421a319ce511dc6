/**
 * What `npm start` runs. What must not happen: a demonstration that passes although nothing came from the SSD.
 */
import { existsSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { demoPrompt } from '../../src/cli/demo-prompt.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { parseLines, tidemark } from './command.ts';

watchLeaks();

test('kills, restarts, and takes the prompt from the SSD', async () => {
  const { code, stdout } = await tidemark(['demo', '--json'], { env: { TMPDIR: tempDir('demo') }, timeoutMs: 170_000 });
  const report = parseLines(stdout)[0]!;
  expect([code, report.passed]).toEqual([0, true]);
  expect((report.checks as { held: boolean }[]).map(({ held }) => held)).toEqual([true, true, true, true, true, true]);
  expect(report.promptTokens).toBeGreaterThan(2900);
  expect(report.cachedTokens).toBeGreaterThanOrEqual(Math.min(report.durableTokens as number, (report.promptTokens as number) - 1));
  expect(existsSync(report.cache as string)).toBe(true);
  rmSync(dirname(report.cache as string), { recursive: true });
  // Three processes, two of which read the whole prompt; beside other test files that takes its time.
}, 180_000);

test('without its model: says where the model is, or what is wrong with the one given', async () => {
  const { code, stderr } = await tidemark(['demo', '--model', join(TIDE_5M, 'none')], { env: { TMPDIR: tempDir('demo') } });
  expect(code).toBe(1);
  expect(stderr).toMatch(/There is no folder .*\(MODEL_NOT_FOUND\)\n$/);
});

test('the prompt is the same every time', () => {
  expect(demoPrompt()).toBe(demoPrompt());
  expect(demoPrompt()).toMatch(/^1\. Operation\n\n/);
});
