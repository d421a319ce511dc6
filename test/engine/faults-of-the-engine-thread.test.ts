/**
 * What goes wrong on the engine's thread itself: an error nobody caught, a lost device, a native call that does not return, an
 * error that is still in flight.
 *
 * Must not happen: a call that never settles, an error that names the wrong cause, a close or a process that waits for a thread
 * that will not come back, a thread that spins while everybody waits.
 */
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { GREEDY, listen, openEngine, promptIds, rejection, TINY, watchEngines } from '../helpers/engines.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

/** Runs the scenario of fault-child.mjs with the fault of its name; gives what it said, in one record. */
async function withFault(
  kind: string,
  fault: { at?: number; ms?: number },
  dir?: string,
): Promise<{ said: Record<string, unknown>; stderr: string; degraded: unknown[] }> {
  const job = JSON.stringify({ scenario: kind, model: TINY, dir });
  const args = ['--import', join(ROOT, 'test/engine/faults.mjs'), join(ROOT, 'test/engine/fault-child.mjs'), job];
  const env = { TIDEMARK_FAULT: JSON.stringify({ kind, ...fault }), TIDEMARK_TEST_OPS: '1' };
  const { code, stdout, stderr, timedOut } = await runNode(args, { env, timeoutMs: 30_000 });
  expect({ code, timedOut }, `it said:\n${stdout}${stderr}`).toEqual({ code: 0, timedOut: false });
  const lines = stdout.split('\n').filter((line) => line !== '');
  const records = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  return { said: Object.assign({}, ...records), stderr, degraded: records.filter((line) => 'degraded' in line).map((line) => line.degraded) };
}

test('an uncaught error there ends every call with ENGINE_DIED and its message, and is told once', async () => {
  const workers: Worker[] = [];
  const onWorker = (worker: Worker): void => void workers.push(worker);
  process.on('worker', onWorker);
  const engine = await openEngine();
  process.off('worker', onWorker);
  const heard = listen(engine);
  const generation = engine.generate({ tokens: promptIds(50), ...GREEDY, maxTokens: 3_000 });
  await generation.next();
  const waiting = rejection(engine.complete({ tokens: promptIds(50), ...GREEDY, maxTokens: 10 }));
  // No message of ours: the dispatcher of calls in that thread throws on it, outside of every call.
  workers.at(-1)!.postMessage({ id: 'x', type: 'APPLY', argumentList: 1 });
  const error = await waiting;
  expect(error).toMatchObject({ name: 'TidemarkError', code: 'ENGINE_DIED' });
  expect((error as Error).message).toContain('is not a function');
  expect(await rejection(generation.result)).toMatchObject({ code: 'ENGINE_DIED' });
  expect(engine.health().status).toBe('dead');
  expect(engine.stats().requests).toMatchObject({ queued: 0, running: 0 });
  expect(heard.degraded.map((event) => event.code)).toEqual(['ENGINE_DIED']);
  expect(await rejection(engine.countTokens({ tokens: [3] }))).toMatchObject({ code: 'ENGINE_DIED' });
});

test.each([{ cache: 'a cache' }, { cache: 'no cache' }])(
  '[J111] a lost device, with $cache: every request says so, running, queued or later, and it is told once',
  async ({ cache }) => {
    const { said, degraded } = await withFault('lost', { at: 20 }, cache === 'a cache' ? tempDir() : undefined);
    expect(said.answers).toEqual(['DEVICE_LOST', 'DEVICE_LOST', 'DEVICE_LOST']);
    expect(said).toMatchObject({ later: 'DEVICE_LOST', health: 'dead', running: 0, queued: 0, report: { lost: 0 } });
    expect(degraded).toEqual(['DEVICE_LOST']);
  },
);

test('a native call that does not return: close gives the thread up within its deadline, and the process ends by itself', async () => {
  const begin = performance.now();
  const { said } = await withFault('blocks', { at: 3, ms: 25_000 });
  expect(said.pending).toBe('ENGINE_STUCK');
  expect(said.closed).toBeLessThan(2_000);
  expect(performance.now() - begin).toBeLessThan(20_000);
});

test('an error that comes while the engine is closed does not hold it up', async () => {
  const { said, stderr } = await withFault('failsInFlight', {});
  expect(said.answered).toBe('answered');
  expect(said.closed).toBeLessThan(5_000);
  expect(stderr).toBe('');
});
