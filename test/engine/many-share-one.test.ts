/**
 * Many requests on one signal, many engines on one folder.
 *
 * Must not happen: a warning of Node about a leak that is none, a request that is not aborted, a listener left behind.
 */
import { getEventListeners } from 'node:events';
import { expect, onTestFinished, test } from 'vitest';
import type { Engine } from '../../dist/index.js';
import { cacheIn, GREEDY, openEngine, promptIds, rejection, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines(16);

/** Warnings that Node gives from now on. */
function warnings(): string[] {
  const heard: string[] = [];
  const onWarning = (warning: Error): void => void heard.push(`${warning.name}: ${warning.message}`);
  process.on('warning', onWarning);
  onTestFinished(() => void process.off('warning', onWarning));
  return heard;
}

test('one signal for twenty requests has one listener, aborts all of them, and is let go', async () => {
  const heard = warnings();
  const engine = await openEngine();
  const { signal } = new AbortController();
  const request = { tokens: promptIds(10), ...GREEDY, maxTokens: 5 };
  const all = Array.from({ length: 20 }, () => engine.complete({ ...request, signal }));
  expect(getEventListeners(signal, 'abort')).toHaveLength(1);
  await Promise.all(all);
  expect(getEventListeners(signal, 'abort')).toHaveLength(0);

  const controller = new AbortController();
  const aborted = Array.from({ length: 20 }, () => rejection(engine.complete({ ...request, maxTokens: 3_000, signal: controller.signal })));
  const other = engine.complete(request);
  const reason = new Error('enough');
  controller.abort(reason);
  for (const error of await Promise.all(aborted)) expect(error).toBe(reason);
  expect((await other).tokenIds).toHaveLength(5);
  expect(getEventListeners(controller.signal, 'abort')).toHaveLength(0);
  expect(heard).toEqual([]);
});

test('eleven engines on one folder', async () => {
  const heard = warnings();
  const dir = tempDir();
  const engines: Engine[] = [];
  for (let i = 0; i < 11; i++) engines.push(await openEngine({ cache: cacheIn(dir) }));
  await Promise.all(engines.map((engine) => engine.close()));
  expect(heard).toEqual([]);
});
