/**
 * Every way out of prefill and decode gives the allocator's cache back, and drains the engine's own stream for it: the one made on the engine's
 * thread, which is no other thread's and not the one that MLX would take by itself.
 *
 * Must not happen: a clear that drained another stream first, a way out that leaves the cache full, a clear whose error is lost.
 */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { TINY } from '../helpers/engines.ts';
import { ROOT } from '../helpers/paths.ts';

interface Clear {
  clear: string[];
  made: number;
}

async function run(scenario: string, fault: Record<string, unknown> = {}): Promise<{ said: Record<string, unknown>; clears: Clear[] }> {
  const args = ['--import', join(ROOT, 'test/clears/watch-clears.mjs'), join(ROOT, 'test/clears/exit-child.mjs'), JSON.stringify({ scenario, model: TINY })];
  const { code, stdout, stderr, timedOut } = await runNode(args, { env: { TIDEMARK_FAULT: JSON.stringify(fault) }, timeoutMs: 50_000 });
  expect({ code, stderr, timedOut }, stdout).toEqual({ code: 0, stderr: '', timedOut: false });
  const lines = stdout.split('\n').filter((line) => line !== '');
  const records = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  const isClear = (record: Record<string, unknown>) => 'clear' in record;
  return { said: Object.assign({}, ...records.filter((record) => !isClear(record))), clears: records.filter(isClear) as unknown as Clear[] };
}

/** `own`: those of this way out. One more comes with the model's load, one with the engine's end. */
function expectOwnStream(clears: Clear[], own: number): void {
  expect(clears.length).toBeGreaterThanOrEqual(own + 2);
  for (const { clear, made } of clears) {
    expect(made).toBe(1);
    // Without the lock, then with it, then as the thread's default stream.
    expect(clear).toEqual(['engine', 'engine', 'engine']);
  }
}

test.each([
  { exit: 'success, after each chunk of the prompt', scenario: 'success', fault: {}, ended: 'answered', own: 3 },
  { exit: 'abort', scenario: 'abort', fault: {}, ended: 'AbortError', own: 1 },
  { exit: 'run-time error', scenario: 'error', fault: { at: 1, code: 'MLX_ERROR' }, ended: 'MLX_ERROR', own: 1 },
  { exit: 'memory exceeded', scenario: 'memory', fault: { at: 1, code: 'MEMORY_LIMIT' }, ended: 'MEMORY_LIMIT', own: 1 },
])('[J107][J109] prefill: $exit', async ({ scenario, fault, ended, own }) => {
  const { said, clears } = await run(scenario, fault);
  expect(said).toEqual({ ended, clears: own, foreignOps: 0 });
  expectOwnStream(clears, own);
});

test.each([
  { exit: 'every 512 steps', scenario: 'decode' },
  { exit: '8 steps after the last answer', scenario: 'deferred' },
])('[J107][J108][J110] decode: $exit', async ({ scenario }) => {
  const { said, clears } = await run(scenario);
  expect(said).toEqual({ ended: 'answered', clears: 1, foreignOps: 0 });
  expectOwnStream(clears, 1);
});

test('[J111] a device that takes no more work, met by a clear: the request, later ones and the engine end with DEVICE_LOST, told once', async () => {
  // The first clear is the one behind the load.
  const { said } = await run('lost', { lostAt: 1 });
  expect(said.ended).toBe('DEVICE_LOST DEVICE_LOST dead DEVICE_LOST');
  expect(said.clears).toBe(0);
});
