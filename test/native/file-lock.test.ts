// One process owns a cache folder, by an flock. What must not happen: two owners, a lock that outlives its process, or one that is lost because
// the same file was opened and closed elsewhere in the process.
import { execFileSync } from 'node:child_process';
import { closeSync, lstatSync, openSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { type FlockFailure, loadNativeCore } from '../../src/shared/native-core.ts';
import { runNode, spawnLines } from '../helpers/child.ts';
import { tempDir } from '../helpers/temp.ts';

const core = loadNativeCore()!;
const addon = createRequire(import.meta.url).resolve('../../build/Release/tidemark_core.node');
const holder = (path: string): string =>
  `const core = require(${JSON.stringify(addon)}); const r = core.flockTry(${JSON.stringify(path)}); console.log(JSON.stringify({ r })); setInterval(() => undefined, 1000);`;

const held = (result: number | FlockFailure): boolean => typeof result !== 'number' && result.held;

test('a second process is refused until the first ends, by SIGKILL too', async () => {
  const path = join(tempDir('flock'), 'lock');
  const first = spawnLines(['-e', holder(path)]);
  expect(typeof (await first.next()).r).toBe('number');
  expect(held(core.flockTry(path))).toBe(true);
  const second = spawnLines(['-e', holder(path)]);
  expect((await second.next()).r).toMatchObject({ held: true, unsupported: false });
  first.kill('SIGKILL');
  await first.ended;
  const fd = core.flockTry(path);
  expect(typeof fd).toBe('number');
  expect(core.flockRelease(fd as number)).toBe(0);
});

test('within one process a second open is refused as well', () => {
  const path = join(tempDir('flock'), 'lock');
  const fd = core.flockTry(path) as number;
  expect(held(core.flockTry(path))).toBe(true);
  // fcntl locks would be dropped by this.
  closeSync(openSync(path, 'r'));
  readFileSync(path);
  expect(held(core.flockTry(path))).toBe(true);
  expect(core.flockRelease(fd)).toBe(0);
  expect(core.flockRelease(core.flockTry(path) as number)).toBe(0);
});

test('a lock taken in a Worker outlives the Worker', async () => {
  const path = join(tempDir('flock'), 'lock');
  const worker = new Worker(`require('node:worker_threads').parentPort.postMessage(require(${JSON.stringify(addon)}).flockTry(${JSON.stringify(path)}))`, {
    eval: true,
  });
  const fd = await new Promise<number>((resolve) => worker.once('message', resolve));
  await new Promise((resolve) => worker.once('exit', resolve));
  expect(held(core.flockTry(path))).toBe(true);
  expect(core.flockRelease(fd)).toBe(0);
});

test('a child process does not inherit the lock', async () => {
  const path = join(tempDir('flock'), 'lock');
  const fd = core.flockTry(path) as number;
  const child = spawnLines(['-e', "console.log('1'); setInterval(() => undefined, 1000)"]);
  await child.next();
  expect(core.flockRelease(fd)).toBe(0);
  expect(typeof core.flockTry(path)).toBe('number');
  child.kill('SIGKILL');
});

test('the file is private, a symlink is not followed, a missing folder is said', () => {
  const dir = tempDir('flock');
  const fd = core.flockTry(join(dir, 'lock')) as number;
  expect(lstatSync(join(dir, 'lock')).mode & 0o777).toBe(0o600);
  core.flockRelease(fd);
  writeFileSync(join(dir, 'target'), '');
  symlinkSync(join(dir, 'target'), join(dir, 'link'));
  expect(core.flockTry(join(dir, 'link'))).toMatchObject({ held: false });
  expect(core.flockTry(join(dir, 'none', 'lock'))).toMatchObject({ errno: 2, held: false, unsupported: false });
});

test('fullSync and thread names', async () => {
  const path = join(tempDir('flock'), 'data');
  writeFileSync(path, 'x');
  const fd = openSync(path, 'r+');
  expect(core.fullSync(fd)).toBe(0);
  closeSync(fd);
  expect(core.fullSync(fd + 1000)).toBe(9);
  expect(core.threadId()).toBeGreaterThan(0);
  const source = `const core = require(${JSON.stringify(addon)}); core.setThreadName('tidemark-a-long-name'); require('node:worker_threads').parentPort.postMessage(core.threadId())`;
  const worker = new Worker(`${source}; setInterval(() => undefined, 1000)`, { eval: true });
  const tid = await new Promise<number>((resolve) => worker.once('message', resolve));
  if (process.platform === 'linux') expect(readFileSync(`/proc/self/task/${tid}/comm`, 'utf8').trim()).toBe('tidemark-a-long');
  await worker.terminate();
});

test('exitNow ends the process while a thread sits in native code and exit listeners would wait', async () => {
  const fifo = join(tempDir('fifo'), 'fifo');
  execFileSync('mkfifo', [fifo]);
  // Opening a FIFO that nobody writes blocks in a system call: such a thread can be neither terminated nor waited for.
  const stuck = `require('node:fs').openSync(${JSON.stringify(fifo)}, 'r')`;
  const script = `const core = require(${JSON.stringify(addon)});
    process.on('exit', () => console.log('must not be printed'));
    new (require('node:worker_threads').Worker)(${JSON.stringify(stuck)}, { eval: true }).on('online', () => setTimeout(() => core.exitNow(70), 50));`;
  const result = await runNode(['-e', script], { timeoutMs: 10_000 });
  expect(result).toMatchObject({ code: 70, stdout: '', timedOut: false });
});
