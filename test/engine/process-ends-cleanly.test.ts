/**
 * What an engine does to its process: it holds it while something is pending and no longer, and every ending is clean.
 *
 * Must not happen: a process that hangs because of an idle engine, one that ends under a pending answer, an exit code or a signal
 * that is not the app's own.
 */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { cacheIn, GREEDY, openEngine, TINY, watchEngines } from '../helpers/engines.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

interface Ended {
  code: number | null;
  signal: string | null;
  stderr: string;
  lines: Record<string, unknown>[];
}

async function child(scenario: string, dir?: string): Promise<Ended> {
  const job = JSON.stringify({ scenario, model: TINY, dir });
  const { code, signal, stdout, stderr, timedOut } = await runNode([join(ROOT, 'test/engine/process-child.mjs'), job], { timeoutMs: 40_000 });
  expect(timedOut, `'${scenario}' did not end by itself; it said:\n${stdout}${stderr}`).toBe(false);
  const lines = stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  return { code, signal, stderr, lines };
}

const has = (ended: Ended, key: string) => ended.lines.find((line) => key in line)?.[key];

describe.each([{ cache: 'no cache' }, { cache: 'a cache' }])('with $cache', ({ cache }) => {
  const dir = () => (cache === 'a cache' ? tempDir() : undefined);

  test.each(['idle', 'answered'])('an engine that has nothing to do does not keep the process alive: %s', async (scenario) => {
    expect(await child(scenario, dir())).toMatchObject({ code: 0, signal: null, stderr: '' });
  });

  test.each(['pending', 'reading'])('an answer under way does: %s', async (scenario) => {
    const ended = await child(scenario, dir());
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(has(ended, 'tokens')).toBe(300);
  });

  test('so does countTokens', async () => {
    const ended = await child('counting', dir());
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(has(ended, 'count')).toBe(9);
  });

  test.each([
    ['exit in prefill', 3],
    ['exit in decode', 4],
    ['exit at once after submit', 5],
    ['exit code set', 6],
  ] as const)('process.exit keeps its code: %s', async (scenario, code) => {
    expect(await child(scenario, dir())).toMatchObject({ code, signal: null, stderr: '' });
  });

  test.each([
    ['uncaught error in decode', 'the app failed'],
    ['uncaught error in a listener', 'the listener failed'],
    ['unhandled rejection of an answer', 'PROMPT_EMPTY'],
  ])('an error of the app ends it as such: %s', async (scenario, message) => {
    const ended = await child(scenario, dir());
    expect(ended).toMatchObject({ code: 1, signal: null });
    expect(ended.stderr).toContain(message);
  });

  test.each(['close then exit', 'close then natural end', 'close not awaited', 'close and open again'])('closed: %s', async (scenario) => {
    const ended = await child(scenario, dir());
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(has(ended, scenario === 'close and open again' ? 'again' : 'report')).toBeTruthy();
  });

  test('close with an answer pending rejects it', async () => {
    const ended = await child('close with an answer pending', dir());
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(has(ended, 'rejected')).toBe('ENGINE_CLOSED');
  });
});

describe('accepted bytes', () => {
  test('that wait for the disk at a natural end are drained, and the next process finds them', async () => {
    const dir = tempDir();
    const ended = await child('undrained', dir);
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    const captured = has(ended, 'captured') as number;
    expect(captured).toBeGreaterThan(150);
    expect(has(ended, 'durableAtExit')).toBe(captured);
    const engine = await openEngine({ cache: cacheIn(dir) });
    const tokens = Array.from({ length: 3_000 }, (_, i) => 3 + ((i * 37 + Math.floor(i / 5)) % 300));
    expect((await engine.complete({ tokens, ...GREEDY, maxTokens: 1 })).usage.cachedTokens).toBe(2_999);
  });
});
