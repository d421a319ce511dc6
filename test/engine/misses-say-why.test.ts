/**
 * Why less was reused than could have been: in the last chunk, in the result, in the `miss` event and in the figures alike.
 *
 * Must not happen: a shorter reuse without a reason, a reason where everything was reused, two events for one request.
 */
import { readdirSync, readFileSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { CacheOptions, Completion, Engine, RequestOptions } from '../../dist/index.js';
import { cacheIn, GREEDY, type Heard, listen, openEngine, promptIds, readAll, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

const TOKENS = promptIds(100);

interface Opened {
  engine: Engine;
  heard: Heard;
  ask(more?: Partial<RequestOptions>): Promise<Completion>;
}

async function open(dir: string, cache: CacheOptions = {}, model?: string): Promise<Opened> {
  const engine = await openEngine({ cache: cacheIn(dir, cache), ...(model === undefined ? {} : { model }) });
  const heard = listen(engine);
  return { engine, heard, ask: (more = {}) => engine.complete({ tokens: TOKENS, ...GREEDY, maxTokens: 1, ...more }) };
}

/** A folder that holds the prompt. */
async function filled(cache: CacheOptions = {}): Promise<string> {
  const dir = tempDir();
  const { engine, ask } = await open(dir, cache);
  await ask();
  await engine.close();
  return dir;
}

function fileOf(dir: string, part: 'kv' | 'state', end: number): string {
  const names = readdirSync(join(dir, 'blocks'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith(`.${part}.safetensors`));
  const found = names.map((name) => join(dir, 'blocks', name)).find((path) => readFileSync(path).includes(`"tm.end":"${end}"`));
  if (found === undefined) throw new Error(`no ${part} file of a block that ends at ${end}`);
  return found;
}

/** Event, result and figures say the same. */
function expectMiss({ engine, heard }: Opened, result: Completion, reason: string, cachedTokens: number): void {
  expect({ reason: result.missReason, cached: result.usage.cachedTokens }).toEqual({ reason, cached: cachedTokens });
  expect(heard.miss).toMatchObject([{ requestId: result.requestId, reason, cachedTokens, promptTokens: 100 }]);
  expect(heard.miss[0]!.detail).not.toBe('');
  expect(engine.stats().store.misses).toEqual({ [reason]: 1 });
}

describe('a reason', () => {
  test('absent: the first time', async () => {
    const opened = await open(tempDir());
    expectMiss(opened, await opened.ask(), 'absent', 0);
  });

  test('none, and a hit: everything that could be was reused', async () => {
    const { engine, heard, ask } = await open(await filled());
    const result = await ask();
    expect(result).toMatchObject({ missReason: null, usage: { cachedTokens: 99 } });
    expect(heard.miss).toEqual([]);
    expect(engine.stats().store).toMatchObject({ hits: 1, misses: {} });
    expect(engine.stats().store.bytesRestored).toBeGreaterThan(0);
    expect(engine.stats().tokens).toMatchObject({ prompt: 100, cached: 99, prefilled: 1 });
  });

  test('none for a longer prompt either: its first part is all that was ever there', async () => {
    const opened = await open(await filled());
    const result = await opened.ask({ tokens: [...TOKENS, ...promptIds(30, 3)] });
    // The last token of the first request's prompt was computed for its answer.
    expect(result).toMatchObject({ missReason: null, usage: { cachedTokens: 100 } });
    expect(opened.heard.miss).toEqual([]);
  });

  test('off: for the request, and for the engine; neither is an event', async () => {
    const opened = await open(await filled());
    expect(await opened.ask({ noRestore: true })).toMatchObject({ missReason: 'off', usage: { cachedTokens: 0 } });
    expect(opened.heard.miss).toEqual([]);
    const without = await openEngine();
    expect(await without.complete({ tokens: TOKENS, ...GREEDY, maxTokens: 1 })).toMatchObject({ missReason: 'off' });
  });

  test('fingerprint: stored for the same tokens by another model', async () => {
    const opened = await open(await filled(), {}, TIDE_5M);
    expectMiss(opened, await opened.ask(), 'fingerprint', 0);
  });

  test('checksum: a byte of the last block is another', async () => {
    const dir = await filled();
    const path = fileOf(dir, 'kv', 99);
    const bytes = readFileSync(path);
    bytes[bytes.length - 5]! ^= 4;
    writeFileSync(path, bytes);
    const opened = await open(dir);
    expectMiss(opened, await opened.ask(), 'checksum', 96);
  });

  test('truncated: a file is shorter than its header says', async () => {
    const dir = await filled();
    truncateSync(fileOf(dir, 'state', 99), 5_000);
    const opened = await open(dir);
    expectMiss(opened, await opened.ask(), 'truncated', 96);
  });

  test('gap: a block in the middle is gone, and nothing behind it is used', async () => {
    const dir = await filled();
    const opened = await open(dir);
    // Removed behind the store's back, while it runs: its index still believes in it.
    rmSync(fileOf(dir, 'kv', 48));
    const result = await opened.ask();
    expect(result.usage.cachedTokens).toBe(32);
    expect(['gap', 'io']).toContain(result.missReason);
    expect(opened.heard.miss).toHaveLength(1);
  });

  test('deadline: the restore takes longer than it may; the answer does not', async () => {
    const dir = await filled();
    const right = await (await open(dir)).ask({ maxTokens: 8, noRestore: true });
    const opened = await open(dir, { restoreDeadlineMs: 1 });
    // Which of the two wins is the machine's choice; both are right.
    for (let i = 0; i < 5; i++) {
      const result = await opened.ask({ maxTokens: 8 });
      expect(result.tokenIds).toEqual(right.tokenIds);
      if (result.usage.cachedTokens === 0) expect(result.missReason).toBe('deadline');
      else expect(result).toMatchObject({ missReason: null, usage: { cachedTokens: 99 } });
    }
  });

  test('evicted: was stored, and has made room for others', async () => {
    const dir = tempDir();
    const opened = await open(dir, { maxBytes: 1024 * 1024 });
    await opened.ask();
    await opened.engine.flush();
    for (let i = 1; i < 6; i++) {
      await opened.ask({ tokens: promptIds(300, i) });
      await opened.engine.flush();
    }
    opened.heard.miss.length = 0;
    const result = await opened.ask();
    expect(result.usage.cachedTokens).toBeLessThan(99);
    expect(result.missReason).toBe('evicted');
    expect(opened.heard.miss).toMatchObject([{ reason: 'evicted' }]);
    expect(opened.heard.degraded).toEqual([]);
  });
});

describe('the last chunk', () => {
  test('tells what the result tells', async () => {
    const dir = await filled();
    renameSync(fileOf(dir, 'state', 99), join(dir, 'away'));
    const { engine } = await open(dir);
    const generation = engine.generate({ tokens: TOKENS, ...GREEDY, maxTokens: 3 });
    const last = (await readAll(generation)).at(-1)!;
    const result = await generation.result;
    expect(last).toMatchObject({ missReason: result.missReason, usage: result.usage });
    expect(result.usage.cachedTokens).toBe(96);
  });
});
