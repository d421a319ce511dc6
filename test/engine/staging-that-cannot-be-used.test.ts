/**
 * Something else where staging should be, and staging that cannot be removed.
 *
 * Must not happen: an engine that is not created, a close that rejects, an app that is ended by a rejection of ours, a folder
 * that stays locked.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { cacheIn, GREEDY, listen, openEngine, promptIds, until, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

const request = { tokens: promptIds(60), ...GREEDY, maxTokens: 3 };
const STAGING = '_boundary_snapshots';

test.each([
  ['a link to a folder', (path: string) => symlinkSync(tempDir(), path)],
  ['a link to nothing', (path: string) => symlinkSync('/nowhere/at/all', path)],
  ['a file', (path: string) => writeFileSync(path, 'mine')],
])('%s in its place: what is stored is restored, nothing is added, and one event says so', async (_, put) => {
  const dir = tempDir();
  const before = await openEngine({ cache: cacheIn(dir) });
  await before.complete(request);
  await before.close();
  execFileSync('rm', ['-rf', join(dir, STAGING)]);
  put(join(dir, STAGING));
  const engine = await openEngine({ cache: cacheIn(dir) });
  const heard = listen(engine);
  expect((await engine.complete(request)).usage.cachedTokens).toBe(59);
  await engine.complete({ ...request, tokens: promptIds(60, 5) });
  expect(engine.health()).toMatchObject({ status: 'degraded', persistence: 'degraded' });
  expect(engine.stats().boundaries.captured).toBe(0);
  await engine.close();
  expect(heard.degraded.map((event) => event.code)).toEqual(['CACHE_DIR_UNUSABLE']);
});

/** A file system inside the session's folder, so that it cannot be removed. Gives back how to end that, or why it cannot be had. */
function occupy(dir: string): (() => void) | { reason: string } {
  const staging = join(dir, STAGING);
  const session = readdirSync(staging).find((name) => !name.endsWith('.lock') && name !== '_promote')!;
  const path = join(staging, session, 'occupied');
  mkdirSync(path);
  try {
    execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', path], { stdio: 'pipe' });
  } catch (error) {
    return { reason: `mounting is not permitted here: ${String(error)}` };
  }
  return () => void execFileSync('umount', ['-l', path]);
}

test.each(['closed', 'dead'])('that cannot be removed when an engine is %s: close reports, a warning tells it, the folder is free', async (how) => {
  const dir = tempDir();
  const workers: Worker[] = [];
  const onWorker = (worker: Worker): void => void workers.push(worker);
  process.on('worker', onWorker);
  const engine = await openEngine({ cache: cacheIn(dir) });
  process.off('worker', onWorker);
  const heard = listen(engine);
  await engine.complete(request);
  await engine.flush();
  const free = occupy(dir);
  if (typeof free !== 'function') return console.log(free.reason);
  try {
    if (how === 'dead') {
      await workers.at(-1)!.terminate();
      await until('the warning', () => heard.warning.length > 0);
    }
    expect(await engine.close()).toMatchObject({ lost: 0 });
    expect(heard.warning.map((event) => event.code)).toEqual(['CACHE_IO']);
  } finally {
    free();
  }
  const next = await openEngine({ cache: cacheIn(dir) });
  expect(next.health().persistence).toBe('on');
  expect((await next.complete(request)).usage.cachedTokens).toBe(59);
});
