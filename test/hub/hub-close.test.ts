/**
 * The end of a hub and of the process. What must not happen: a close without end, a process that an idle hub keeps alive, a
 * lock given up while a thread may still write.
 */
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { loadNativeCore } from '../../dist/shared/native-core.js';
import { ITEM, STATE } from '../../dist/shared/session/item-table.js';
import { type ChildResult, runNode } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { COMMAND, closeHubsAfterEach, newSession, obedient, openHub } from './hub.ts';

closeHubsAfterEach();

async function start(init: Parameters<typeof obedient>[0] = {}, tuning: object = {}) {
  const commands = obedient(init);
  const hub = (await openHub(tempDir('hub'), { ...commands.tuning, ...tuning })).hub!;
  const port = await hub.attachSession(newSession(hub));
  return { hub, port, give: (loop: 'writer' | 'store', command: number) => commands.give(hub, loop, command) };
}

test('a loop that does not return is ended after its limits, and the lock is free', async () => {
  const { hub, port, give } = await start({}, { noProgressMs: 50, stopMs: 50 });
  give('writer', COMMAND.sleepForever);
  give('store', COMMAND.sleepForever);
  expect(await hub.release(10_000)).toEqual({ drained: false, stuck: [] });
  const fd = loadNativeCore()!.flockTry(join(hub.dir, 'lock'));
  expect(fd).toBeTypeOf('number');
  loadNativeCore()!.flockRelease(fd as number);
  port.close();
});

test('draining goes on as long as there is progress, beyond the limit without', async () => {
  const { hub, port, give } = await start({ writer: { drains: true } }, { noProgressMs: 1_000 });
  hub.sessions[0]!.items.set(0, ITEM.state, STATE.queued);
  expect(hub.pending).toBe(true);
  let bumps = 0;
  const progress = setInterval(() => {
    bumps++;
    if (bumps < 15) hub.control.writer.bumpProgress();
    else if (bumps === 15) give('writer', COMMAND.freeItems);
  }, 100);
  expect(await hub.release(10_000)).toEqual({ drained: true, stuck: [] });
  clearInterval(progress);
  // It outlasted the limit.
  expect(bumps).toBeGreaterThanOrEqual(15);
  port.close();
});

test('a deadline shorter than the limit ends a drain without progress', async () => {
  const { hub, port } = await start({ writer: { drains: true } }, { noProgressMs: 60_000, absoluteMs: 60_000 });
  hub.sessions[0]!.items.set(0, ITEM.state, STATE.queued);
  expect(await hub.release(50)).toMatchObject({ drained: false, stuck: [] });
  port.close();
});

test('a session that does not get detached in time is told so', async () => {
  const { hub, port } = await start({ store: { deafToDetach: true } });
  expect(await hub.detachSession(1, 50)).toBe(false);
  port.close();
});

describe('the process', () => {
  const script = (dir: string, then: string, init: object = {}) => `
    import { processRegistry } from '${ROOT}dist/host/process-registry.js';
    import { openStoreHub } from '${ROOT}dist/host/store-hub.js';
    import { createSessionMemory } from '${ROOT}dist/shared/session/index.js';
    import { ITEM, STATE } from '${ROOT}dist/shared/session/item-table.js';
    const say = (...what) => console.log(what.join(' '));
    const command = { writer: new SharedArrayBuffer(4), store: new SharedArrayBuffer(4) };
    const tuning = {
      writerEntry: '${ROOT}test/hub/workers/writer.mjs', storeEntry: '${ROOT}test/hub/workers/store.mjs', noProgressMs: 100, stopMs: 100, terminateMs: 200,
      writerInit: { command: command.writer, ...${JSON.stringify(init)} }, storeInit: { command: command.store },
    };
    const registry = processRegistry();
    const { hub } = await openStoreHub(registry, { dir: ${JSON.stringify(dir)}, maxBytes: 1e9, blockSize: 256, tuning });
    const limits = ${JSON.stringify({ pendingMaxBytes: 1024 * 1024, queueCapacity: 4, unitCapacity: 4, registryCapacity: 16 })};
    const memory = createSessionMemory({ stagingRoot: hub.stagingRoot, hub: hub.words, number: 1, limits });
    (await hub.attachSession(memory)).unref();
    const give = (loop, n) => { Atomics.store(new Int32Array(command[loop]), 0, n); hub.control[loop].bell.ring(); };
    process.on('exit', (code) => say('exit', code));
    ${then}`;
  const run = (dir: string, then: string, init?: object): Promise<ChildResult> =>
    runNode(['--input-type=module', '-e', script(dir, then, init)], { timeoutMs: 30_000 });
  const lines = (result: ChildResult) => result.stdout.trim().split('\n');

  test('ends by itself with an idle hub', async () => {
    const result = await run(tempDir('hub'), `say('done');`);
    expect(result).toMatchObject({ code: 0, timedOut: false, stderr: '' });
    expect(lines(result)).toEqual(['done', 'exit 0']);
  });

  test('is kept alive while somebody holds the hub', async () => {
    const result = await run(tempDir('hub'), `hub.ref(); setTimeout(() => { say('let go'); hub.unref(); }, 200).unref(); say('done');`);
    expect(lines(result)).toEqual(['done', 'let go', 'exit 0']);
  });

  test('waits at its natural end for accepted bytes', async () => {
    const then = `hub.sessions[0].items.set(0, ITEM.state, STATE.queued);
      setTimeout(() => { say('written'); give('writer', ${COMMAND.freeItems}); }, 300).unref(); say('done');`;
    expect(lines(await run(tempDir('hub'), then))).toEqual(['done', 'written', 'exit 0']);
  });

  test('does not wait for ever for bytes that get nowhere, nor at process.exit', async () => {
    const pending = `hub.sessions[0].items.set(0, ITEM.state, STATE.queued);`;
    const [natural, asked] = await Promise.all([run(tempDir('hub'), `${pending} say('done');`), run(tempDir('hub'), `${pending} process.exit(3);`)]);
    expect(natural).toMatchObject({ code: 0, timedOut: false });
    expect(asked).toMatchObject({ code: 3, timedOut: false });
  });

  test('with a thread in a system call that never returns: close gives it up and keeps the lock, the process leaves with its exit code', async () => {
    const base = tempDir('hub');
    const dir = join(base, 'cache');
    mkdirSync(dir);
    const fifo = join(base, 'fifo');
    expect(spawnSync('mkfifo', [fifo]).status).toBe(0);
    const then = `
      give('writer', ${COMMAND.readForever});
      while (!registry.threads.list().some((t) => t.activity === 'file')) await new Promise((resolve) => setTimeout(resolve, 5));
      say(JSON.stringify(await hub.release(200)));
      const again = await openStoreHub(registry, { dir: ${JSON.stringify(dir)}, maxBytes: 1e9, blockSize: 256 });
      say(again.hub.mode, again.degraded.code);
      process.exitCode = 9;
      process.on('exit', () => say('listener added later'));`;
    const result = await run(dir, then, { fifo });
    expect(result).toMatchObject({ code: 9, timedOut: false });
    expect(lines(result)).toEqual(['{"drained":false,"stuck":["writer"]}', 'read-only CACHE_LOCKED', 'exit 9', 'listener added later']);
  });

  test('with such a thread and no close: it leaves all the same', async () => {
    const base = tempDir('hub');
    const fifo = join(base, 'fifo');
    spawnSync('mkfifo', [fifo]);
    const then = `
      give('writer', ${COMMAND.readForever});
      while (!registry.threads.list().some((t) => t.activity === 'file')) await new Promise((resolve) => setTimeout(resolve, 5));
      process.exit(4);`;
    expect(await run(join(base, 'cache'), then, { fifo })).toMatchObject({ code: 4, timedOut: false });
  });

  test('with an engine in a native call that has hung: process.exit leaves with its code', async () => {
    const base = tempDir('hub');
    const fifo = join(base, 'fifo');
    spawnSync('mkfifo', [fifo]);
    const engine = `
      const { workerData } = require('node:worker_threads');
      const { openSync, readSync } = require('node:fs');
      import('${ROOT}dist/sync.js').then(({ ThreadTable }) => {
        new ThreadTable(workerData.threads).enter('engine', 'engine').activity('native', 'eval', 10);
        readSync(openSync(workerData.fifo, 'r+'), new Uint8Array(1));
      });`;
    const then = `
      const { Worker } = await import('node:worker_threads');
      new Worker(${JSON.stringify(engine)}, { eval: true, execArgv: [], workerData: { threads: registry.shared.threads, fifo: ${JSON.stringify(fifo)} } });
      while (!registry.threads.list().some((t) => t.activity === 'native')) await new Promise((resolve) => setTimeout(resolve, 5));
      process.exit(6);`;
    expect(await run(join(base, 'cache'), then)).toMatchObject({ code: 6, timedOut: false });
  });
});
