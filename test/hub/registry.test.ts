/** One registry per process. What must not happen: two copies of the package with a `bufferAccess` each. */
import { expect, test } from 'vitest';
import { lockFolder } from '../../dist/host/folder-lock.js';
import { runNode } from '../helpers/child.ts';
import { dist } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

const node = (source: string) => runNode(['--input-type=module', '-e', source]);

test('two copies of the package share memory and thread table', async () => {
  const result = await node(`
    const a = await import('${dist('host/process-registry')}?copy=1');
    const b = await import('${dist('host/process-registry')}?copy=2');
    console.log(a.processRegistry === b.processRegistry, a.processRegistry() === b.processRegistry());`);
  expect(result).toMatchObject({ code: 0, stdout: 'false true\n' });
});

test('a copy with other memory layouts is refused, with what to do', async () => {
  const result = await node(`
    globalThis[Symbol.for('tidemark.process')] = { version: 99 };
    const { processRegistry } = await import('${dist('host/process-registry')}');
    try { processRegistry(); } catch (error) { console.log(error.code, error.message); }`);
  expect(result.stdout).toMatch(/^VERSION_CONFLICT .*npm ls tidemark/);
});

test('it is made on the main thread only', async () => {
  const result = await node(`
    import { Worker } from 'node:worker_threads';
    const source = "import('${dist('host/process-registry')}').then((m) => m.processRegistry()).catch((error) => console.log(error.code))";
    new Worker(source, { eval: true, execArgv: [] });`);
  expect(result.stdout).toBe('NOT_MAIN_THREAD\n');
});

test.each([
  ['the native core is missing', null, 'LOCK_UNSUPPORTED'],
  ['the file system has no flock', { errno: 95, message: 'not supported', held: false, unsupported: true }, 'LOCK_UNSUPPORTED'],
  ['the disk is full', { errno: 28, message: 'no space', held: false, unsupported: false }, 'CACHE_FULL'],
  ['somebody has it', { errno: 11, message: 'busy', held: true, unsupported: false }, 'CACHE_LOCKED'],
  ['the folder is not ours', { errno: 13, message: 'denied', held: false, unsupported: false }, 'CACHE_READ_ONLY'],
] as const)('a lock that is not had because %s makes the folder read-only', (_, refusal, code) => {
  const locks = refusal === null ? null : { flockTry: () => ({ ...refusal }) };
  expect(lockFolder(tempDir('lock'), locks)).toMatchObject({ mode: 'read-only', fd: null, degraded: { code } });
});
