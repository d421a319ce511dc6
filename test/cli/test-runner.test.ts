/**
 * `scripts/test.mjs`. What must not happen: a failed run that ends as a passed one, a run that never ends, or a last
 * line that is not the count.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchLeaks();

const NO_VITEST = { VITEST: undefined, VITEST_WORKER_ID: undefined, VITEST_POOL_ID: undefined };

async function runFixture(name: string, env: Record<string, string> = {}) {
  const reports = tempDir('reports');
  const result = await runNode([join(ROOT, 'scripts/test.mjs'), '--no-build', '--config', join(ROOT, 'test/cli/runner-fixtures/vitest.config.ts'), name], {
    cwd: ROOT,
    timeoutMs: 60_000,
    // None of what the run around this one was told.
    env: { TIDEMARK_REPORTS: reports, TIDEMARK_SEED: '77', TIDEMARK_LONG: undefined, TIDEMARK_TEST_LIMIT_MS: undefined, ...NO_VITEST, ...env },
  });
  const lines = result.stdout.trimEnd().split('\n');
  return { code: result.code, lines, last: lines.at(-1), report: join(reports, 'vitest.json') };
}

test('a good run: counts with skipped ones, seed shown and passed on, report written, exit code 0', async () => {
  const { code, lines, last, report } = await runFixture('passes');
  expect([code, last]).toEqual([0, '2 passed, 0 failed, 1 skipped']);
  expect(lines[0]).toBe('seed 77');
  expect(JSON.parse(readFileSync(report, 'utf8'))).toMatchObject({ numPassedTests: 2 });
});

test('a failed test is named and counted', async () => {
  const { code, lines, last } = await runFixture('fails');
  expect([code, last]).toEqual([1, '1 passed, 1 failed']);
  expect(lines).toContain('failed: test/cli/runner-fixtures/fails.fixture.ts: bad');
});

test('a file that does not load is one failure', async () => {
  const { code, lines, last } = await runFixture('unloadable');
  expect([code, last]).toEqual([1, '0 passed, 1 failed']);
  expect(lines.some((line) => line.includes('unloadable.fixture.ts: Error: does not load') || line.includes('unloadable.fixture.ts: does not load'))).toBe(
    true,
  );
});

test('an error outside every test is a failure although all tests passed', async () => {
  expect(await runFixture('throws')).toMatchObject({ code: 1, last: '1 passed, 1 failed' });
});

test('no test at all is a failure', async () => {
  expect(await runFixture('nothing-of-that-name')).toMatchObject({ code: 1, last: '0 passed, 1 failed' });
});

test('a test that blocks its thread is ended at the limit', async () => {
  const { code, lines, last, report } = await runFixture('hangs', { TIDEMARK_TEST_LIMIT_MS: '4000' });
  expect([code, last]).toEqual([1, '0 passed, 1 failed']);
  expect(lines).toContain('the test run was stopped: it took longer than 4 s');
  expect(existsSync(report)).toBe(false);
});
