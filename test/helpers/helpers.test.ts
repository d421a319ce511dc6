/**
 * The helpers themselves: what must not happen is that a leak goes unseen or a child outlives its test.
 */
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runNode, spawnLines } from './child.ts';
import { childProcesses, openFiles, threadCount, watchLeaks } from './leaks.ts';
import { seeded } from './seed.ts';
import { listTree, tempDir } from './temp.ts';
import { evalWorker, exitOf, nextMessage } from './worker.ts';

watchLeaks();
const linux = process.platform === 'linux';

describe('children', () => {
  test('output, exit code and input come through', async () => {
    const result = await runNode(['-e', 'process.stdin.on("data", (d) => process.stdout.write(d)).on("end", () => process.exit(3))'], { input: 'abc' });
    expect(result).toMatchObject({ code: 3, signal: null, stdout: 'abc', timedOut: false });
  });

  test('a child that does not end is killed at its limit', async () => {
    const result = await runNode(['-e', 'setInterval(() => 0, 1000)'], { timeoutMs: 300 });
    expect(result).toMatchObject({ signal: 'SIGKILL', timedOut: true });
  });

  test('JSON lines are read one by one, and a line that never comes is an error with what the child said', async () => {
    const child = spawnLines(['-e', 'console.log(JSON.stringify({n: 1})); console.log(JSON.stringify({n: 2})); console.error("bye")']);
    expect(await child.next()).toEqual({ n: 1 });
    expect(await child.until((line) => line.n === 2)).toEqual({ n: 2 });
    await child.ended;
    await expect(child.next()).rejects.toThrow(/bye/);
  });

  test.runIf(linux)('a running child is seen', async () => {
    const child = spawnLines(['-e', 'console.log("{}"); setInterval(() => 0, 1000)']);
    await child.next();
    expect(childProcesses()).toContain(child.process.pid);
    child.kill();
    expect((await child.ended).signal).toBe('SIGKILL');
    expect(childProcesses()).not.toContain(child.process.pid);
  });
});

describe('leaks', () => {
  test.runIf(linux)('an open file is seen until it is closed', () => {
    const path = join(tempDir(), 'open');
    writeFileSync(path, 'x');
    const fd = openSync(path, 'r');
    expect(openFiles().get(path)).toBe(1);
    closeSync(fd);
    expect(openFiles().has(path)).toBe(false);
  });

  test('a Worker is seen until it has ended', async () => {
    const before = threadCount();
    const worker = evalWorker('parentPort.postMessage(1); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)');
    const ended = exitOf(worker);
    await nextMessage(worker);
    expect(threadCount()).toBeGreaterThan(before);
    await worker.terminate();
    await ended;
    await expect.poll(threadCount).toBeLessThanOrEqual(before);
  });
});

describe('folders and seeds', () => {
  let made = '';
  test('a temporary folder exists during its test', () => {
    made = tempDir();
    writeFileSync(join(made, 'a'), '');
    expect(listTree(made)).toEqual(['a']);
  });

  test('and is gone after it', () => {
    expect(() => listTree(made)).toThrow(/ENOENT/);
  });

  test('one seed gives one sequence for each purpose', () => {
    const draw = (purpose: string) => Array.from({ length: 4 }, () => seeded(purpose, 7).integer(0, 1e9));
    expect(draw('a')).toEqual(draw('a'));
    expect(draw('a')).not.toEqual(draw('b'));
  });
});
