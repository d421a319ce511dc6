/**
 * `tidemark cache …` on folders without an engine. What must not happen: damage that is not found, a file removed that
 * was not asked for, or a folder changed under a process that writes it.
 */
import { existsSync, readFileSync, realpathSync, symlinkSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { spawnLines } from '../helpers/child.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { ROOT } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { makeChain, makeLitter } from './cache-folder.ts';
import { cli } from './harness.ts';

watchLeaks();
const A = 'a'.repeat(64);
const B = 'ab'.repeat(32);

const cache = (verb: string, dir: string, ...args: string[]) => cli(['cache', verb, '--cache', dir, ...args]);
const json = async (verb: string, dir: string, ...args: string[]) => {
  const run = await cache(verb, dir, '--json', ...args);
  return { code: run.code, events: run.events, event: run.events[0]! };
};

/** Two models, three blocks and one. */
function twoModels(): { dir: string; a: ReturnType<typeof makeChain>; b: ReturnType<typeof makeChain> } {
  const dir = tempDir('cache');
  return { dir, a: makeChain(dir, 3, A), b: makeChain(dir, 1, B, 2) };
}

describe('a folder that cannot be looked at', () => {
  test.each(['stat', 'ls', 'verify', 'gc', 'purge'])('%s says so and makes none', async (verb) => {
    const dir = join(tempDir(), 'none');
    const { code, stderr } = await cache(verb, dir, ...(verb === 'purge' ? ['--all', '--yes'] : []));
    expect(code).toBe(1);
    expect(stderr).toMatch(/there is no cache folder .*\(CACHE_DIR_UNUSABLE\)/);
    expect(existsSync(dir)).toBe(false);
    const file = join(tempDir(), 'file');
    writeFileSync(file, '');
    expect((await cache(verb, file, ...(verb === 'purge' ? ['--all', '--yes'] : []))).stderr).toMatch(/is not a folder/);
  });
});

test('a link to the folder is followed, as engines do', async () => {
  const { dir } = twoModels();
  const link = join(tempDir(), 'link');
  symlinkSync(dir, link);
  expect((await json('stat', link)).event).toMatchObject({ dir: realpathSync(dir), files: 8 });
  expect((await json('verify', link)).event).toMatchObject({ files: 8, damaged: [] });
});

describe('stat', () => {
  test('counts files by kind and by model', async () => {
    const { dir } = twoModels();
    makeLitter(dir);
    const { code, event } = await json('stat', dir);
    expect(code).toBe(0);
    expect(event).toMatchObject({ dir, files: 11, unreadable: 0 });
    const kinds = event.kinds as Record<string, { files: number; diskBytes: number }>;
    expect(Object.fromEntries(Object.entries(kinds).map(([kind, tally]) => [kind, tally.files]))).toEqual({
      kv: 4,
      state: 4,
      temporary: 1,
      staging: 1,
      foreign: 1,
    });
    expect(Object.values(kinds).reduce((sum, tally) => sum + tally.diskBytes, 0)).toBe(event.diskBytes);
    expect(event.models).toMatchObject([
      { fingerprint: A, blocks: 3, tokens: 48, files: 6 },
      { fingerprint: B, blocks: 1, tokens: 16, files: 2 },
    ]);
    const { stdout } = await cache('stat', dir);
    expect(stdout).toMatch(/^.*: 11 files, [\d.]+ [kM]B\n/);
    expect(stdout).toMatch(/\nkv +4 +/);
    expect(stdout).toContain(A.slice(0, 12));
  });

  test('an empty folder is empty, a damaged header is counted apart', async () => {
    const dir = tempDir('cache');
    expect((await json('stat', dir)).event).toMatchObject({ files: 0, diskBytes: 0, models: [] });
    const [block] = makeChain(dir, 1, A);
    truncateSync(block!.kv, 4);
    expect((await json('stat', dir)).event).toMatchObject({ files: 2, unreadable: 1 });
    expect((await cache('stat', dir)).stdout).toContain('1 block file with a header that cannot be read');
  });
});

describe('ls', () => {
  test('lists blocks with parts, range and model, newest first', async () => {
    const { dir, a, b } = twoModels();
    for (const { kv, state } of a) for (const path of [kv, state]) utimesSync(path, 1000, 1000);
    const { events } = await json('ls', dir);
    expect(events.map((entry) => [entry.block, entry.start, entry.end, entry.parts])).toEqual([
      [b[0]!.hash, 0, 16, ['kv', 'state']],
      [a[0]!.hash, 0, 16, ['kv', 'state']],
      [a[1]!.hash, 16, 32, ['kv', 'state']],
      [a[2]!.hash, 32, 48, ['kv', 'state']],
    ]);
    expect(events[2]).toMatchObject({ parent: a[0]!.hash, model: A });
    expect((await json('ls', dir, '--model', 'aaa')).events).toHaveLength(3);
    expect((await json('ls', dir, '--limit', '1')).events).toHaveLength(1);
    expect((await cache('ls', dir, '--limit', '1')).stdout).toMatch(/and 3 blocks more\n$/);
    expect((await cache('ls', tempDir('cache'))).stdout).toBe('no blocks\n');
  });
});

describe('verify', () => {
  test('a whole folder is whole', async () => {
    const { dir } = twoModels();
    expect(await json('verify', dir)).toMatchObject({ code: 0, event: { files: 8, damaged: [], orphans: 0, complete: true } });
    expect((await cache('verify', dir)).stdout).toMatch(/^8 files, [\d.]+ [kM]B read, 0 damaged\n$/);
  });

  test('finds a flipped byte anywhere, a cut, and a file under another name; exit code 1, nothing removed', async () => {
    const { dir, a } = twoModels();
    const flip = (path: string, at: (length: number) => number): void => {
      const bytes = readFileSync(path);
      bytes[at(bytes.length)]! ^= 1;
      writeFileSync(path, bytes);
    };
    flip(a[0]!.kv, (length) => length - 1);
    flip(a[0]!.state, () => 40);
    truncateSync(a[1]!.kv, 1000);
    writeFileSync(a[2]!.state, readFileSync(a[1]!.state));
    const tree = listTree(dir);
    const { code, event } = await json('verify', dir);
    expect(code).toBe(1);
    const damaged = event.damaged as { path: string; reason: string }[];
    expect(new Map(damaged.map(({ path, reason }) => [path, reason]))).toEqual(
      new Map([
        [a[0]!.kv, 'checksum'],
        [a[0]!.state, expect.stringMatching(/checksum|format|version/)],
        [a[1]!.kv, 'truncated'],
        [a[2]!.state, 'format'],
      ]),
    );
    expect(listTree(dir)).toEqual(tree);
    expect((await cache('verify', dir)).stdout).toContain(`damaged (checksum): ${a[0]!.kv}\n`);
  });
});

describe('gc', () => {
  test('removes what is left over, and nothing else when the folder is within its limit', async () => {
    const { dir, a, b } = twoModels();
    const { temporary, staged, foreign } = makeLitter(dir);
    const plan = await json('gc', dir, '--dry-run');
    expect(plan).toMatchObject({ code: 0, event: { dryRun: true, files: 2, blocks: 0, within: true } });
    expect([temporary, staged].map(existsSync)).toEqual([true, true]);
    expect(await json('gc', dir)).toMatchObject({ code: 0, event: { dryRun: false, blocks: 0, within: true } });
    expect([temporary, staged].map(existsSync)).toEqual([false, false]);
    for (const path of [foreign, ...[...a, ...b].flatMap(({ kv, state }) => [kv, state])]) expect(existsSync(path)).toBe(true);
  });

  test('above the limit the oldest blocks go, children before parents, and the plan says the same', async () => {
    const { dir, a, b } = twoModels();
    for (const [i, { kv, state }] of a.entries()) for (const path of [kv, state]) utimesSync(path, 1000 + i, 1000 + i);
    await json('gc', dir); // makes the index, which counts as well
    const { diskBytes } = (await json('stat', dir)).event as { diskBytes: number };
    // Less than a block; SQLite's side files, there only while the index is open, are well below one.
    const limit = String(diskBytes - 100_000);
    const plan = (await json('gc', dir, '--dry-run', '--max-bytes', limit)).event;
    expect(existsSync(a[2]!.kv)).toBe(true);
    const done = await json('gc', dir, '--max-bytes', limit);
    expect(done).toMatchObject({ code: 0, event: { blocks: 1, within: true } });
    expect(plan.blocks).toBe(1);
    // The tip of the older chain: its parents are still needed by nobody, but were not in the way.
    expect([a[0]!, a[1]!, a[2]!, b[0]!].map(({ kv }) => existsSync(kv))).toEqual([true, true, false, true]);
    expect((await json('verify', dir)).event).toMatchObject({ damaged: [], orphans: 0 });
  });

  test('a limit that cannot be kept is exit code 1', async () => {
    const { dir } = twoModels();
    makeLitter(dir);
    expect(await json('gc', dir, '--max-bytes', '0')).toMatchObject({ code: 1, event: { within: false, blocks: 4 } });
  });
});

describe('purge', () => {
  test('says what to do when asked for nothing, for both, or with nobody to ask', async () => {
    const { dir } = twoModels();
    for (const args of [[], ['--all', '--model', 'a']]) expect((await cache('purge', dir, ...args)).stderr).toMatch(/say what to remove/);
    const { code, stderr } = await cache('purge', dir, '--all');
    expect([code, stderr]).toEqual([2, expect.stringMatching(/--yes removes without asking/)]);
  });

  test("removes one model's blocks", async () => {
    const { dir, a, b } = twoModels();
    expect(await json('purge', dir, '--model', 'abab', '--yes')).toMatchObject({ code: 0, event: { files: 2 } });
    expect([existsSync(b[0]!.kv), existsSync(b[0]!.state), existsSync(a[0]!.kv)]).toEqual([false, false, true]);
    expect((await json('stat', dir)).event.models).toMatchObject([{ fingerprint: A }]);
  });

  test('the start of two fingerprints is refused', async () => {
    const { dir, a } = twoModels();
    const { code, stderr } = await cache('purge', dir, '--model', 'a', '--yes');
    expect([code, stderr]).toEqual([2, expect.stringMatching(/is the start of 2 fingerprints/)]);
    expect(existsSync(a[0]!.kv)).toBe(true);
  });

  test('--all removes everything of ours and leaves the rest', async () => {
    const { dir } = twoModels();
    makeLitter(dir);
    await json('gc', dir);
    expect((await json('purge', dir, '--all', '--yes')).code).toBe(0);
    expect(listTree(dir)).toEqual(['lock', 'notes.txt']);
  });

  test.each([
    ['y', 0, false],
    ['no', 1, true],
    ['', 1, true],
  ])('on a terminal it asks; the answer %j', async (answer, code, stays) => {
    const { dir, a } = twoModels();
    const run = await cli(['cache', 'purge', '--all', '--cache', dir], {
      tty: true,
      during: async ({ notes, type }) => {
        await notes('[y/N]');
        type(`${answer}\r`);
      },
    });
    expect([run.code, existsSync(a[0]!.kv)]).toEqual([code, stays]);
    expect(run.stderr).toMatch(/Remove 8 files \([\d.]+ [kM]B\) from /);
  });

  test('no answer is a no, Ctrl-C leaves with 130', async () => {
    const { dir, a } = twoModels();
    const ask = (key: string) =>
      cli(['cache', 'purge', '--all', '--cache', dir], {
        tty: true,
        during: async ({ notes, type }) => {
          await notes('[y/N]');
          type(key);
        },
      });
    expect((await ask('\x04')).code).toBe(1);
    expect((await ask('\x03')).code).toBe(130);
    expect(existsSync(a[0]!.kv)).toBe(true);
  });
});

describe('beside a process that holds the lock', () => {
  test('gc and purge refuse and change nothing; stat, ls and verify work', async () => {
    const { dir } = twoModels();
    makeLitter(dir);
    const holder = spawnLines([
      '-e',
      `const core = require(${JSON.stringify(`${ROOT}build/Release/tidemark_core.node`)}); console.log(JSON.stringify({ fd: core.flockTry(${JSON.stringify(join(dir, 'lock'))}) })); setInterval(() => 0, 1000);`,
    ]);
    expect(await holder.next()).toEqual({ fd: expect.any(Number) });
    const tree = listTree(dir);
    for (const run of [await cache('gc', dir), await cache('gc', dir, '--dry-run'), await cache('purge', dir, '--all', '--yes')]) {
      expect([run.code, run.stderr]).toEqual([1, expect.stringMatching(/another process is using .*\(CACHE_LOCKED\)/)]);
    }
    expect(listTree(dir)).toEqual(tree);
    for (const verb of ['stat', 'ls', 'verify']) expect((await cache(verb, dir)).code).toBe(0);
    holder.kill();
    await holder.ended;
    expect((await cache('gc', dir)).code).toBe(0);
  });
});
