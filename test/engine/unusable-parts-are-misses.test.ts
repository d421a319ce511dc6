/**
 * Stored parts that cannot be used, each for a reason of its own: the longest whole prefix before them is, and the next request
 * finds no fault any more.
 *
 * Must not happen: a reason that is not the true one, a wrong answer because of a miss, a fault that is met twice.
 */
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import type { Engine, EngineOptions } from '../../dist/index.js';
import { BlockPaths } from '../../dist/shared/blocks/paths.js';
// @ts-expect-error plain JavaScript, shared with the threads
import { Gate } from '../boundary/gate.mjs';
import { cacheIn, GREEDY, type Heard, listen, openEngine, promptIds, until, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';
import { closeHubsAfterEach, openHub, QUICK } from '../hub/hub.ts';

watchEngines();
closeHubsAfterEach();

const TOKENS = promptIds(100);
const request = { tokens: TOKENS, ...GREEDY, maxTokens: 4 };

interface Stored {
  engine: Engine;
  heard: Heard;
  dir: string;
  answer: number[];
  /** Path of a part of the block that ends at a token. */
  path(end: number, part?: 'kv' | 'state'): string;
}

/** An engine that has answered the request and stored all of it. */
async function stored(options: Partial<EngineOptions> = {}, dir = tempDir()): Promise<Stored> {
  const engine = await openEngine({ cache: cacheIn(dir), ...options });
  const heard = listen(engine);
  const { tokenIds, missReason } = await engine.complete(request);
  expect(missReason).toBe('absent');
  await engine.flush();
  const blocks = new Map(heard.durable.map(({ tokenCount, block }) => [tokenCount, block]));
  const paths = new BlockPaths(dir);
  heard.miss.length = 0;
  return { engine, heard, dir, answer: tokenIds, path: (end, part = 'kv') => paths.block(blocks.get(end)!, part) };
}

/** Asks again: what was reused, why not more, and the one event that says so. */
async function asked({ engine, heard, answer }: Stored): Promise<{ reason: string | null; cached: number; detail: string }> {
  const before = engine.stats().store.misses;
  const { tokenIds, missReason, usage } = await engine.complete(request);
  expect(tokenIds).toEqual(answer);
  const events = heard.miss.splice(0);
  expect(events.map(({ reason, cachedTokens, promptTokens }) => ({ reason, cachedTokens, promptTokens }))).toEqual(
    missReason === null ? [] : [{ reason: missReason, cachedTokens: usage.cachedTokens, promptTokens: 100 }],
  );
  const counted = engine.stats().store.misses;
  if (missReason !== null) expect((counted[missReason] ?? 0) - (before[missReason] ?? 0)).toBe(1);
  return { reason: missReason, cached: usage.cachedTokens, detail: events[0]?.detail ?? '' };
}

function flipLastBit(path: string): void {
  const bytes = readFileSync(path);
  bytes[bytes.length - 1]! ^= 1;
  writeFileSync(path, bytes);
}

function laterFormat(path: string): void {
  const bytes = readFileSync(path);
  bytes.write('"tm.format":"9"', bytes.indexOf('"tm.format":"1"'));
  writeFileSync(path, bytes);
}

describe('a stored part that cannot be used', () => {
  const damages: [reason: string, what: string, damage: (s: Stored) => void, cached: number][] = [
    ['checksum', 'one bit of keys and values', (s) => flipLastBit(s.path(48)), 32],
    ['checksum', 'one bit of a state', (s) => flipLastBit(s.path(99, 'state')), 96],
    ['version', 'a later format', (s) => laterFormat(s.path(48)), 32],
    ['format', 'zeros', (s) => writeFileSync(s.path(48), Buffer.alloc(readFileSync(s.path(48)).length)), 32],
    ['format', 'another block under its name', (s) => copyFileSync(s.path(32), s.path(48)), 32],
    [
      'io',
      'a folder in its place',
      (s) => {
        rmSync(s.path(48));
        mkdirSync(s.path(48));
      },
      32,
    ],
  ];
  test.each(damages)('%s: %s; the longest whole prefix before it is used, and the next request finds no fault', async (reason, _, damage, cached) => {
    const s = await stored();
    damage(s);
    const first = await asked(s);
    expect(first).toMatchObject({ reason, cached });
    expect(first.detail).not.toBe('');
    await s.engine.flush();
    // What was missing has been stored again, unless the name is still taken by a folder.
    if (reason !== 'io') expect(await asked(s)).toEqual({ reason: null, cached: 99, detail: '' });
  });
});

describe('fingerprint', () => {
  test('another salt or arithmetic: the same model, told as such', async () => {
    const s = await stored();
    for (const options of [{ cache: cacheIn(s.dir, { salt: 'tenant' }) }, { compute: 'model' as const, cache: cacheIn(s.dir) }]) {
      const engine = await openEngine(options);
      const heard = listen(engine);
      const { missReason } = await engine.complete({ ...request, persist: 'off' });
      expect(missReason).toBe('fingerprint');
      expect(heard.miss[0]!.detail).toContain('another salt or numerics class');
      await engine.close();
    }
  });
});

describe('evicted', () => {
  test('a prefix that was removed for space is told from one that was never there, also after a restart', async () => {
    const dir = tempDir();
    const small = { cache: cacheIn(dir, { maxBytes: 1_048_576 }) };
    const s = await stored(small, dir);
    // Other prompts until nothing of the first is left: about 8 KB a block.
    for (let start = 1; start <= 6; start++) {
      await s.engine.prefill({ tokens: promptIds(400, start) });
      await s.engine.flush();
    }
    expect(s.engine.stats().boundaries.evicted).toBeGreaterThan(0);
    s.heard.miss.length = 0;
    expect(await asked(s)).toMatchObject({ reason: 'evicted', cached: 0 });
    const never = await s.engine.complete({ ...request, tokens: promptIds(100, 50) });
    expect(never.missReason).toBe('absent');
    await s.engine.prefill({ tokens: promptIds(1_600, 9) });
    await s.engine.close();
    const engine = await openEngine(small);
    expect((await engine.complete({ ...request, persist: 'off' })).missReason).toBe('evicted');
  });
});

describe('a store worker that does not come to it', () => {
  test('deadline: it hangs in a read for longer than restoreDeadlineMs', async () => {
    const gate = new Gate();
    const dir = tempDir();
    await stored({}, dir).then(({ engine }) => engine.close());
    const faults = { module: new URL('../boundary/gate.mjs', import.meta.url).href, data: { gate: gate.buffer, match: '/blocks/' } };
    await openHub(dir, { ...QUICK, storeInit: { faults } });
    const engine = await openEngine({ cache: cacheIn(dir, { restoreDeadlineMs: 200 }) });
    gate.hold('pread');
    const { missReason, usage } = await engine.complete({ ...request, persist: 'off' });
    expect({ missReason, cached: usage.cachedTokens }).toEqual({ missReason: 'deadline', cached: 0 });
    gate.release('pread');
    await until('it is back', () => engine.diagnose().threads.some(({ kind, activity }) => kind === 'store-worker' && activity === 'idle'));
    expect((await engine.complete({ ...request, persist: 'off' })).usage.cachedTokens).toBe(99);
  });
});
