/**
 * `diagnoseOnSignal`: a signal prints what every thread does, while the engine computes.
 *
 * Must not happen: a handler that nobody asked for, one that outlives its engines or keeps the process alive, one for each engine.
 */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createEngine } from '../../dist/index.js';
import { type LineChild, runNode, spawnLines } from '../helpers/child.ts';
import { openEngine, rejection, TINY, until, watchEngines } from '../helpers/engines.ts';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();
const CHILD = join(ROOT, 'test/engine/signal-dump-child.mjs');
const job = (scenario: string, option?: unknown, model = TINY) => [CHILD, JSON.stringify({ scenario, model, option })];
const DUMP = /^tidemark: SIGUSR2, process \d+, .*\nthreads \(\d+\)\n(?: {2}.*\n)+locks \(/m;

async function signalled(option: unknown, heard: (child: LineChild) => boolean): Promise<LineChild> {
  const child = spawnLines(job('computing', option));
  await child.until((line) => 'computing' in line);
  child.kill('SIGUSR2');
  await until('the dump', () => heard(child));
  return child;
}

async function stop(child: LineChild): Promise<void> {
  child.process.stdin!.end('stop');
  expect(await child.until((line) => 'closed' in line)).toEqual({ closed: 0 });
  expect(await child.ended).toEqual({ code: 0, signal: null });
}

describe('a process whose engine computes', () => {
  test('prints the dump on standard error, and goes on', async () => {
    const child = await signalled('SIGUSR2', (c) => DUMP.test(c.stderr()) && c.stderr().includes('last transitions'));
    expect(child.stderr()).toMatch(/^ {2}engine: /m);
    const before = child.seen.length;
    await child.until((line) => 'computing' in line);
    expect(child.seen.length).toBeGreaterThan(before);
    await stop(child);
  });

  test('appends it to a file where one is given; two signals, two dumps', async () => {
    const file = join(tempDir(), 'dump.txt');
    const dumps = () => (statSync(file, { throwIfNoEntry: false }) === undefined ? [] : (readFileSync(file, 'utf8').match(new RegExp(DUMP, 'gm')) ?? []));
    const child = await signalled({ signal: 'SIGUSR2', file }, () => dumps().length === 1);
    expect(statSync(file).mode & 0o777).toBe(0o600);
    child.kill('SIGUSR2');
    await until('the second dump', () => dumps().length === 2);
    expect(child.stderr()).toBe('');
    await stop(child);
  });

  test('a file that cannot be written is told on standard error, with the dump', async () => {
    const child = await signalled({ signal: 'SIGUSR2', file: join(tempDir(), 'no-folder', 'dump.txt') }, (c) => c.stderr().includes('could not be written'));
    expect(child.stderr()).toMatch(DUMP);
    await stop(child);
  });

  test('without the option the signal does what it always did: it ends the process', async () => {
    const child = spawnLines(job('computing'));
    await child.until((line) => 'computing' in line);
    child.kill('SIGUSR2');
    expect(await child.ended).toEqual({ code: null, signal: 'SIGUSR2' });
    expect(child.stderr()).toBe('');
  });
});

describe('the handler', () => {
  const said = async (scenario: string, option?: unknown) => {
    const { code, stdout, stderr, timedOut } = await runNode(job(scenario, option), { timeoutMs: 40_000 });
    expect({ code, timedOut, stderr }).toEqual({ code: 0, timedOut: false, stderr: '' });
    return JSON.parse(stdout);
  };

  test('is shared by the engines of a process and goes with the last', async () => {
    expect(await said('several', 'SIGUSR2')).toEqual({ counts: [0, 1, 1, 0, 1, 0] });
  });

  test('is not installed by default', async () => {
    expect(await said('several')).toEqual({ counts: [0, 0, 0, 0, 0, 0] });
  });

  test('is gone when the engine could not be made', async () => {
    expect(await said('refused', 'SIGUSR2')).toEqual({ code: 'MODEL_NOT_FOUND', handlers: 0 });
  });

  test('does not keep an idle process alive', async () => {
    expect(await said('idle', 'SIGUSR2')).toEqual({ handlers: 1 });
  });
});

describe('the option is checked', () => {
  test.each([
    ['SIGUSR1', /inspector.*SIGUSR2/],
    ['SIGKILL', /can be handled/],
    ['SIGTERM', /does not end the process/],
    ['usr2', /name of a signal/],
    [12, /name of a signal/],
    [{ signal: 'SIGUSR1' }, /diagnoseOnSignal\.signal.*inspector/],
    [{ signal: 'SIGUSR2', path: 'x' }, /diagnoseOnSignal\.path/],
    [{ signal: 'SIGUSR2', file: '' }, /diagnoseOnSignal\.file/],
    [null, /name of a signal/],
  ])('%j is refused', async (option, message) => {
    const error = await rejection(createEngine({ model: TINY, cache: false, diagnoseOnSignal: option as never }));
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', message: expect.stringMatching(message) });
    expect(process.listenerCount('SIGUSR1')).toBe(0);
  });

  test('a model that does not load leaves no handler', async () => {
    const before = process.listenerCount('SIGUSR2');
    const broken = tempDir();
    await rejection(createEngine({ model: broken, cache: false, diagnoseOnSignal: 'SIGUSR2' }));
    expect(process.listenerCount('SIGUSR2')).toBe(before);
    await openEngine();
    expect(process.listenerCount('SIGUSR2')).toBe(before);
  });
});
