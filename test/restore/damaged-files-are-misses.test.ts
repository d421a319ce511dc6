/**
 * Damage: every byte of a block file is flipped in turn, header included, and the file is cut at every length; each time the
 * prompt is answered through a real restore.
 *
 * Must not happen: logits or state that differ by a bit from those of an undamaged run from the same point, and a shortened
 * reuse that gives no reason.
 */
import { readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import type { Engine } from '../../dist/index.js';
import { loadNativeCore } from '../../dist/shared/native-core.js';
import { cacheIn, closeEngines, listen, openEngine, promptIds, watchEngines } from '../helpers/engines.ts';
import { seeded } from '../helpers/seed.ts';
import { tempDir, tempDirForFile } from '../helpers/temp.ts';

watchEngines();

const LONG = process.env.TIDEMARK_LONG === '1';
// One full block and, at 17 = N-1, one of a single token: small files.
const PROMPT = promptIds(18);
const BLOCK = 16;

interface Result {
  cachedTokens: number;
  logits: string;
  state: string;
}

/** What an undamaged run gives that has this many tokens from the cache, by that number. One that may not write takes larger steps. */
type Right = Map<number, Result>;
const dir = tempDirForFile('damage');
let engine: Engine;

async function evaluate(restoreLimit?: number): Promise<Result & { missReason: string | null }> {
  const probe = await evaluateTokens(engine, { ids: PROMPT, chunk: BLOCK, full: true, ...(restoreLimit === undefined ? {} : { restoreLimit }) });
  return {
    cachedTokens: probe.cachedTokens,
    logits: Buffer.from(probe.logits!.buffer).toString('base64'),
    state: probe.stateDigest!,
    missReason: probe.missReason,
  };
}

/** Path of the part whose block ends at `end`. */
function fileOf(folder: string, part: 'kv' | 'state', end: number): string {
  const names = readdirSync(join(folder, 'blocks'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith(`.${part}.safetensors`));
  const found = names.map((name) => join(folder, 'blocks', name)).find((path) => readFileSync(path).includes(`"tm.end":"${end}"`));
  if (found === undefined) throw new Error(`no ${part} file of a block that ends at ${end}`);
  return found;
}

const headerEnd = (bytes: Buffer): number => 8 + Number(bytes.readBigUInt64LE(0));

beforeAll(async () => {
  engine = await openEngine({ cache: cacheIn(dir) });
  await evaluate();
  await closeEngines();
});

async function undamaged(): Promise<Right> {
  const right: Right = new Map();
  for (const limit of [0, 16, 17]) {
    const { missReason: _, ...result } = await evaluate(limit);
    expect(result.cachedTokens).toBe(limit);
    right.set(limit, result);
  }
  return right;
}

/** The answer is that of an undamaged run from the point it says, and a point below the whole has a reason. */
function check(right: Right, result: Awaited<ReturnType<typeof evaluate>>, most: number, what: string): void {
  const { missReason, ...rest } = result;
  expect(rest, what).toEqual(right.get(result.cachedTokens));
  expect(result.cachedTokens, what).toBeLessThanOrEqual(most);
  if (result.cachedTokens < 17) expect(missReason, what).not.toBeNull();
}

describe('with the folder held by somebody else, so that damaged files stay', () => {
  let right: Right;
  let release: () => void;

  // Registered last, so that it runs before open files are looked for.
  afterEach(() => release());

  beforeEach(async () => {
    const core = loadNativeCore()!;
    const lock = core.flockTry(join(dir, 'lock'));
    if (typeof lock !== 'number') throw new Error('the lock is not free');
    release = () => core.flockRelease(lock);
    engine = await openEngine({ cache: cacheIn(dir) });
    expect(engine.health().persistence).toBe('read-only');
    right = await undamaged();
  });

  /** Runs with each version of the file, then with the right one again. */
  async function withEach(path: string, versions: Iterable<{ what: string; bytes: Uint8Array }>, most: number): Promise<Record<string, number>> {
    const whole = readFileSync(path);
    const reasons: Record<string, number> = {};
    try {
      for (const { what, bytes } of versions) {
        writeFileSync(path, bytes);
        const result = await evaluate();
        check(right, result, most, what);
        reasons[result.missReason!] = (reasons[result.missReason!] ?? 0) + 1;
      }
    } finally {
      writeFileSync(path, whole);
    }
    expect((await evaluate()).cachedTokens).toBe(17);
    return reasons;
  }

  function* flips(bytes: Buffer, places: Iterable<number>, mask: (at: number) => number) {
    for (const at of places) {
      const flipped = Buffer.from(bytes);
      flipped[at]! ^= mask(at);
      yield { what: `byte ${at} of ${bytes.length}`, bytes: flipped };
    }
  }

  const every = (length: number, from = 0) => Array.from({ length: length - from }, (_, i) => from + i);

  test.each(['all bits', 'one bit'])(
    'the rows of the last block: each byte, %s',
    async (bits) => {
      const path = fileOf(dir, 'kv', 17);
      const bytes = readFileSync(path);
      const random = seeded(`flips of ${bits}`);
      // In the short form, one bit of every seventh byte: all bits of every byte is the promise that is kept in both.
      const places = bits === 'all bits' || LONG ? every(bytes.length) : every(bytes.length).filter((at) => at % 7 === random.integer(0, 6));
      const reasons = await withEach(
        path,
        flips(bytes, places, () => (bits === 'all bits' ? 0xff : 1 << random.integer(0, 7))),
        16,
      );
      expect(Object.values(reasons).reduce((a, b) => a + b, 0)).toBe(places.length);
      expect(reasons.checksum).toBeGreaterThan(0);
    },
    600_000,
  );

  test('the state of the last block: each byte of the header, and of the payload as many as there is time for', async () => {
    const path = fileOf(dir, 'state', 17);
    const bytes = readFileSync(path);
    const random = seeded('state flips');
    const header = headerEnd(bytes);
    const payload = LONG ? every(bytes.length, header) : Array.from({ length: 200 }, () => random.integer(header, bytes.length - 1));
    const places = [...every(header).filter((at) => LONG || at % 3 === 0), ...payload];
    await withEach(
      path,
      flips(bytes, places, () => 1 << random.integer(0, 7)),
      16,
    );
  }, 600_000);

  test('cut at any length, and longer than it should be', async () => {
    const random = seeded('cuts');
    for (const part of ['kv', 'state'] as const) {
      const path = fileOf(dir, part, 17);
      const bytes = readFileSync(path);
      const header = headerEnd(bytes);
      const lengths = LONG
        ? every(bytes.length)
        : [0, 1, 7, 8, 9, header - 1, header, header + 1, bytes.length - 1, ...Array.from({ length: 120 }, () => random.integer(0, bytes.length - 1))];
      await withEach(
        path,
        lengths.map((length) => ({ what: `${part} cut to ${length}`, bytes: bytes.subarray(0, length) })),
        16,
      );
      const longer = [1, 8, 4096].map((more) => ({ what: `${part} and ${more} more`, bytes: Buffer.concat([bytes, Buffer.alloc(more)]) }));
      await withEach(path, longer, 16);
    }
  }, 600_000);

  test('the first block: nothing behind it can be used either', async () => {
    const path = fileOf(dir, 'kv', 16);
    const bytes = readFileSync(path);
    const random = seeded('first block');
    const places = Array.from({ length: 60 }, () => random.integer(0, bytes.length - 1));
    await withEach(
      path,
      flips(bytes, places, () => 1 << random.integer(0, 7)),
      0,
    );
  });

  test('files in the place of others: another part, another block, the same block of another tenant', async () => {
    const tenant = tempDir();
    const other = await openEngine({ cache: cacheIn(tenant, { salt: 'somebody else' }) });
    await evaluateTokens(other, { ids: PROMPT, chunk: BLOCK });
    await other.close();
    const path = fileOf(dir, 'kv', 17);
    const wrong = {
      'the state of the block': fileOf(dir, 'state', 17),
      'the rows of the first block': fileOf(dir, 'kv', 16),
      'the rows of the same tokens under another salt': fileOf(tenant, 'kv', 17),
    };
    await withEach(
      path,
      Object.entries(wrong).map(([what, from]) => ({ what, bytes: readFileSync(from) })),
      16,
    );
    const state = fileOf(dir, 'state', 17);
    await withEach(
      state,
      [
        { what: 'the state under another salt', bytes: readFileSync(fileOf(tenant, 'state', 17)) },
        { what: 'the state at 16', bytes: readFileSync(fileOf(dir, 'state', 16)) },
      ],
      16,
    );
  });

  test('files that are not there', async () => {
    for (const [part, end, most] of [
      ['kv', 17, 16],
      ['state', 17, 16],
      ['kv', 16, 0],
    ] as const) {
      const path = fileOf(dir, part, end);
      renameSync(path, `${path}.away`);
      try {
        check(right, await evaluate(), most, `no ${part} at ${end}`);
      } finally {
        renameSync(`${path}.away`, path);
      }
    }
    expect((await evaluate()).cachedTokens).toBe(17);
  });
});

describe('with the folder to itself', () => {
  test('a damaged block is told, stored again, and restored the next time', async () => {
    const own = tempDir();
    engine = await openEngine({ cache: cacheIn(own) });
    const heard = listen(engine);
    await evaluate();
    await engine.flush();
    const right = await undamaged();
    const random = seeded('healing');
    for (let i = 0; i < (LONG ? 60 : 8); i++) {
      const part = i % 2 === 0 ? 'kv' : 'state';
      const path = fileOf(own, part, i % 4 < 2 ? 17 : 16);
      const bytes = readFileSync(path);
      bytes[random.integer(0, bytes.length - 1)]! ^= 1 << random.integer(0, 7);
      writeFileSync(path, bytes);
      heard.miss.length = 0;
      const first = await evaluate();
      // The state of the first block is not needed where the rows of both and the state of the last are there.
      const needed = !(part === 'state' && i % 4 >= 2);
      check(right, first, needed ? 16 : 17, `${part}, round ${i}`);
      expect(heard.miss).toHaveLength(needed ? 1 : 0);
      await engine.flush();
      expect((await evaluate()).cachedTokens, `after ${part}, round ${i}`).toBe(17);
    }
    expect(heard.degraded).toEqual([]);
  });
});
