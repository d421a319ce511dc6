/**
 * Cache folders that cannot be used as they should: read-only, not a folder, full, gone, held by another process, holding
 * files of others, without a usable index.
 *
 * Must not happen: a request that fails or is answered wrongly because of the disk, a degradation that is not told or told twice.
 */
import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import type { Engine, EngineOptions } from '../../dist/index.js';
import { spawnLines } from '../helpers/child.ts';
import { fillDisk, smallDisk } from '../helpers/disks.ts';
import { cacheIn, GREEDY, type Heard, listen, openEngine, promptIds, TINY, watchEngines } from '../helpers/engines.ts';
import { ROOT, TIDE_5M } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchEngines();

const request = { tokens: promptIds(200), ...GREEDY, maxTokens: 20 };
let right: number[];

beforeAll(async () => {
  const engine = await openEngine();
  right = (await engine.complete(request)).tokenIds;
  await engine.close();
});

async function open(dir: string, options: Partial<EngineOptions> = {}): Promise<{ engine: Engine; heard: Heard }> {
  const engine = await openEngine({ cache: cacheIn(dir), ...options });
  return { engine, heard: listen(engine) };
}

/** Fills a folder with the request's blocks. */
async function filled(dir: string): Promise<void> {
  const engine = await openEngine({ cache: cacheIn(dir) });
  await engine.complete(request);
  await engine.close();
}

/** The answer is right; gives how much of the prompt was not computed. */
async function answered(engine: Engine): Promise<number> {
  const { tokenIds, usage } = await engine.complete(request);
  expect(tokenIds).toEqual(right);
  await engine.flush();
  return usage.cachedTokens;
}

const codes = (events: readonly { code: string }[]): string[] => events.map((event) => event.code);

function blockFiles(dir: string): string[] {
  return listTree(dir).filter((path) => path.endsWith('.safetensors') && path.startsWith('blocks/'));
}

describe('a folder on a read-only disk', () => {
  test('is used for what it holds, and one event says so', async (context) => {
    const disk = smallDisk(64);
    if ('reason' in disk) return context.skip(disk.reason);
    const dir = join(disk.path, 'cache');
    await filled(dir);
    disk.remount('ro');
    const { engine, heard } = await open(dir);
    expect(await answered(engine)).toBe(199);
    await engine.complete({ ...request, tokens: promptIds(100, 7) });
    expect(engine.health()).toMatchObject({ status: 'ok', persistence: 'read-only' });
    expect(engine.stats().boundaries.captured).toBe(0);
    await engine.close();
    expect(codes(heard.degraded)).toEqual(['CACHE_READ_ONLY']);
    // SQLite cannot read its index where it cannot write: the files are read instead.
    expect(codes(heard.warning)).toEqual(['INDEX_REBUILT']);
  });

  test('cannot be made there: one event, and no cache', async (context) => {
    const disk = smallDisk();
    if ('reason' in disk) return context.skip(disk.reason);
    disk.remount('ro');
    const { engine, heard } = await open(join(disk.path, 'not/there/yet'));
    expect(await answered(engine)).toBe(0);
    expect(await answered(engine)).toBe(0);
    expect(engine.health().persistence).toBe('off');
    await engine.close();
    expect(codes(heard.degraded)).toEqual(['CACHE_DIR_UNUSABLE']);
    expect(heard.degraded[0]!.details).toMatchObject({ errno: 'EROFS' });
  });
});

describe('a folder that is none', () => {
  test('missing parents are made', async () => {
    const dir = join(tempDir(), 'a/b/c');
    const { engine, heard } = await open(dir);
    await answered(engine);
    expect(await answered(engine)).toBe(199);
    expect(heard.degraded).toEqual([]);
  });

  test.each(['in its place', 'in the place of its parent'])('a file %s: one event, and no cache', async (where) => {
    const path = join(tempDir(), 'file');
    writeFileSync(path, 'mine');
    const { engine, heard } = await open(where === 'in its place' ? path : join(path, 'cache'));
    expect(await answered(engine)).toBe(0);
    expect(await answered(engine)).toBe(0);
    await engine.close();
    expect(codes(heard.degraded)).toEqual(['CACHE_DIR_UNUSABLE']);
    expect(readFileSync(path, 'utf8')).toBe('mine');
  });

  test('removed while in use: answers go on, and it is made again and used', async () => {
    const dir = join(tempDir(), 'cache');
    const { engine, heard } = await open(dir);
    await answered(engine);
    renameSync(dir, `${dir}-gone`);
    for (let i = 0; i < 3; i++) expect([0, 199]).toContain(await answered(engine));
    // The disk is tried again after a pause.
    let cached = 0;
    for (let i = 0; i < 40 && cached !== 199; i++) {
      cached = await answered(engine);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    expect(cached).toBe(199);
    expect(heard.degraded.length).toBeLessThanOrEqual(1);
    expect(codes(heard.recovered)).toEqual(codes(heard.degraded));
  });
});

describe('a full disk', () => {
  test('before the first block: one event, and everything is stored again when there is room', async (context) => {
    const disk = smallDisk();
    if ('reason' in disk) return context.skip(disk.reason);
    const ballast = join(disk.path, 'ballast');
    const { engine, heard } = await open(join(disk.path, 'cache'));
    fillDisk(ballast);
    expect(await answered(engine)).toBe(0);
    expect(await answered(engine)).toBe(0);
    expect(codes(heard.degraded)).toEqual(['CACHE_FULL']);
    expect(engine.health()).toMatchObject({ status: 'degraded', persistence: 'degraded' });
    rmSync(ballast);
    let cached = 0;
    for (let i = 0; i < 60 && cached !== 199; i++) {
      cached = await answered(engine);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    expect(cached).toBe(199);
    expect(codes(heard.degraded)).toEqual(['CACHE_FULL']);
    expect(codes(heard.recovered)).toEqual(['CACHE_FULL']);
    expect(engine.health()).toMatchObject({ status: 'ok', persistence: 'on' });
  });

  test('before the engine opens the folder: one event, right answers, and a clean close', async (context) => {
    const disk = smallDisk();
    if ('reason' in disk) return context.skip(disk.reason);
    const dir = join(disk.path, 'cache');
    mkdirSync(dir);
    fillDisk(join(disk.path, 'ballast'));
    const { engine, heard } = await open(dir);
    expect(await answered(engine)).toBe(0);
    expect(await answered(engine)).toBe(0);
    await engine.close();
    expect(codes(heard.degraded)).toEqual(['CACHE_FULL']);
  });

  test('of 8 MB, with prompts that need more: old prefixes make room for new ones, every answer is right', async (context) => {
    const disk = smallDisk();
    if ('reason' in disk) return context.skip(disk.reason);
    const plain = await openEngine({ model: TIDE_5M });
    const engine = await openEngine({ model: TIDE_5M, cache: { dir: join(disk.path, 'cache'), maxBytes: 1_000_000_000 } });
    const heard = listen(engine);
    for (let i = 0; i < 4; i++) {
      const long = { tokens: promptIds(1_100, i), ...GREEDY, maxTokens: 4 };
      const answer = await engine.complete(long);
      expect(answer.tokenIds).toEqual((await plain.complete(long)).tokenIds);
      await engine.flush();
    }
    const { captured, durable, evicted, failed, dropped, superseded, pending, written } = engine.stats().boundaries;
    expect(durable + evicted).toBeGreaterThan(0);
    expect(durable + evicted + failed + superseded + pending + written + Object.values(dropped).reduce((a, b) => a + b, 0)).toBe(captured);
    await engine.close();
    // The disk may fill up again and again, but no outage is told twice.
    expect(heard.degraded.length - heard.recovered.length).toBeGreaterThanOrEqual(0);
    expect(heard.degraded.length - heard.recovered.length).toBeLessThanOrEqual(1);
    expect(new Set(codes([...heard.degraded, ...heard.recovered]))).toEqual(new Set(heard.degraded.length > 0 ? ['CACHE_FULL'] : []));
    expect(listTree(disk.path).filter((path) => path.endsWith('.tmp'))).toEqual([]);
  });
});

describe('a folder that another process writes', () => {
  test('is only read here; one event says who may write, and what is stored there is found', async () => {
    const dir = tempDir();
    await filled(dir);
    const holder = spawnLines([join(ROOT, 'test/engine/holder-child.mjs'), JSON.stringify({ model: TINY, dir })]);
    await holder.until((line) => line.ready === true);
    const { engine, heard } = await open(dir);
    expect(await answered(engine)).toBe(199);
    expect(engine.health().persistence).toBe('read-only');
    expect(engine.stats().boundaries.captured).toBe(0);
    const before = blockFiles(dir);
    await engine.complete({ ...request, tokens: promptIds(100, 9) });
    expect(blockFiles(dir)).toEqual(before);
    expect(codes(heard.degraded)).toEqual(['CACHE_LOCKED']);
    await engine.close();
    holder.kill();
    await holder.ended;
    // The lock goes with its process.
    const next = await open(dir);
    expect(next.engine.health().persistence).toBe('on');
    expect(await answered(next.engine)).toBe(199);
    await next.engine.close();
    expect(next.heard.degraded).toEqual([]);
  });
});

describe('files of others', () => {
  test('in the cache folder are left alone and told once as a warning', async () => {
    const dir = tempDir();
    await filled(dir);
    const strangers = ['notes.txt', 'blocks/readme', `blocks/00/${'0'.repeat(64)}.kv.safetensors.bak`, 'blocks/zz/file'];
    for (const name of strangers) {
      mkdirSync(join(dir, name, '..'), { recursive: true });
      writeFileSync(join(dir, name), 'not ours');
    }
    const { engine, heard } = await open(dir);
    expect(await answered(engine)).toBe(199);
    await engine.close();
    for (const name of strangers) expect(readFileSync(join(dir, name), 'utf8')).toBe('not ours');
    expect(heard.degraded).toEqual([]);
    expect(codes(heard.warning)).toEqual(['FOREIGN_FILES']);
  });

  test('of another format version are kept, told, and never used', async () => {
    const dir = tempDir();
    await filled(dir);
    const files = blockFiles(dir);
    for (const name of files) {
      const bytes = readFileSync(join(dir, name));
      const at = bytes.indexOf('"tm.format":"1"');
      expect(at).toBeGreaterThan(0);
      bytes.write('9', at + '"tm.format":"'.length);
      writeFileSync(join(dir, name), bytes);
    }
    const { engine, heard } = await open(dir);
    expect(await answered(engine)).toBe(0);
    await engine.close();
    expect(heard.degraded).toEqual([]);
    expect(heard.miss.map((event) => event.reason)).toEqual(['version']);
    expect(codes(heard.warning).filter((code) => code !== 'FOREIGN_FILES')).toEqual([]);
  });

  test('of another model are not used', async () => {
    const dir = tempDir();
    await filled(dir);
    const other = join(tempDir(), 'other');
    cpSync(TINY, other, { recursive: true });
    const weights = readFileSync(join(TINY, 'model.safetensors'));
    // Same names, same shapes, other numbers: the lowest bit of many of them.
    for (let at = 300_000; at < 440_000; at += 2) weights[at]! ^= 1;
    writeFileSync(join(other, 'model.safetensors'), weights);
    const { engine, heard } = await open(dir, { model: other });
    const { usage, missReason } = await engine.complete(request);
    expect({ cached: usage.cachedTokens, missReason }).toEqual({ cached: 0, missReason: 'fingerprint' });
    await engine.close();
    expect(heard.degraded).toEqual([]);
    const own = await open(dir);
    expect(await answered(own.engine)).toBe(199);
  });
});

describe('an index that is no more', () => {
  const index = (dir: string) => readdirSync(dir).filter((name) => name.startsWith('index.sqlite'));

  test.each(['deleted', 'overwritten with noise', 'emptied', 'cut in half', 'replaced by a folder'])(
    '%s between two runs: rebuilt from the files, told once',
    async (how) => {
      const dir = tempDir();
      await filled(dir);
      const path = join(dir, 'index.sqlite');
      const before = readFileSync(path);
      for (const name of index(dir)) rmSync(join(dir, name));
      if (how === 'overwritten with noise') writeFileSync(path, Buffer.from(Array.from({ length: before.length }, (_, i) => (i * 197) % 256)));
      if (how === 'emptied') writeFileSync(path, '');
      if (how === 'cut in half') writeFileSync(path, before.subarray(0, before.length / 2));
      if (how === 'replaced by a folder') mkdirSync(path);
      const { engine, heard } = await open(dir);
      expect(await answered(engine)).toBe(199);
      await engine.close();
      expect(heard.degraded).toEqual([]);
      expect(codes(heard.warning)).toEqual(['INDEX_REBUILT']);
      const again = await open(dir);
      expect(await answered(again.engine)).toBe(199);
      await again.engine.close();
      if (how !== 'replaced by a folder') expect(again.heard.warning).toEqual([]);
    },
  );

  test('deleted under a running engine: what is stored is found all the same', async () => {
    const dir = tempDir();
    const { engine, heard } = await open(dir);
    await answered(engine);
    for (const name of index(dir)) rmSync(join(dir, name));
    expect(await answered(engine)).toBe(199);
    await engine.close();
    expect(heard.degraded).toEqual([]);
    const again = await open(dir);
    expect(await answered(again.engine)).toBe(199);
  });
});
