// The size limit counts every file under the folder and holds at start and at each save. Must not happen: a parent that
// goes before its child, a chain in use that is cut, a folder of another format that is deleted without need.
import { mkdirSync, readdirSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { BlockPaths } from '../../src/shared/blocks/paths.ts';
import { Space } from '../../src/store-worker/space.ts';
import { chainSpecs } from './fixtures.ts';
import { BLOCK, Harness, tokensOf } from './harness.ts';

const GB = 1e9;

function space(maxBytes: number, tracked: number, free: number | null, warnings: string[] = [], now = () => 0): Space {
  const freeBytes = () => {
    if (free === null) throw new Error('no statfs');
    return free;
  };
  const made = new Space({ maxBytes, freeBytes, otherBytes: () => 0, now, warn: (_, message) => warnings.push(message), probeTtlMs: 30_000 });
  made.blockBytes = tracked;
  return made;
}

describe('effective limit', () => {
  it.each([
    [100 * GB, 0, 500 * GB, 100 * GB],
    [110 * GB, 10 * GB, 90 * GB, 99 * GB],
    [110 * GB, 60 * GB, 10 * GB, 0.99 * 70 * GB],
  ])('[H88] limit %d with %d tracked and %d free is %d', (limit, tracked, free, expected) => {
    expect(space(limit, tracked, free).effectiveLimit()).toBe(expected);
  });

  it('[H89] without a probe the configured limit holds and one warning is given; a probe holds for 30 s', () => {
    const warnings: string[] = [];
    const failing = space(100, 5, null, warnings);
    expect([failing.effectiveLimit(), failing.effectiveLimit()]).toEqual([100, 100]);
    expect(warnings).toHaveLength(1);
    let time = 0;
    let probes = 0;
    const freeBytes = () => {
      probes += 1;
      return 1000;
    };
    const counted = new Space({ maxBytes: 100, freeBytes, otherBytes: () => 0, now: () => time, warn: () => undefined, probeTtlMs: 30_000 });
    counted.effectiveLimit();
    time = 29_999;
    counted.effectiveLimit();
    expect(probes).toBe(1);
    time = 30_000;
    counted.effectiveLimit();
    expect(probes).toBe(2);
    counted.invalidate();
    counted.effectiveLimit();
    expect(probes).toBe(3);
  });

  it('[H89] little free space is told; utilization is never above 1', () => {
    const warnings: string[] = [];
    expect(space(100, 500, 9, warnings).utilization()).toBe(1);
    expect(warnings[0]).toMatch(/disk pressure/);
    expect(space(100, 50, 1000).utilization()).toBe(0.5);
  });
});

/** Physical bytes of everything under a folder. */
function bytesUnder(folder: string): number {
  return (readdirSync(folder, { recursive: true }) as string[])
    .map((name) => statSync(join(folder, name)))
    .filter((stat) => stat.isFile())
    .reduce((sum, stat) => sum + stat.blocks * 512, 0);
}

/** Index, journal and staging left out, so that figures are those of block files alone. */
const BLOCKS_ONLY = { otherBytes: () => 0 };
const blockBytes = (harness: Harness) => bytesUnder(join(harness.dir, 'blocks'));

/** Bytes of one block of the test chains on this file system: two files. */
const PER_BLOCK = 8192;

describe('eviction', () => {
  it('[H90] R21: least recently used first, children before parents, the chain being stored last', () => {
    const harness = new Harness();
    const old = harness.submitChain(tokensOf(3 * BLOCK, 1), 'old');
    harness.drain();
    harness.submitChain(tokensOf(2 * BLOCK, 2), 'new');
    harness.drain();
    expect(blockBytes(harness)).toBe(5 * PER_BLOCK);
    const limited = new Harness({ ...BLOCKS_ONLY, dir: harness.dir, maxBytes: 5 * PER_BLOCK + 4096 });
    limited.submitChain(tokensOf(2 * BLOCK, 3), 'third');
    limited.drain();
    const gone = limited.of('evicted').map((event) => event.block);
    expect(gone.slice(0, 2)).toEqual([old[2]!.kv.blockHash, old[1]!.kv.blockHash]);
    expect(limited.lookUp(tokensOf(2 * BLOCK, 3)).end).toMatchObject({ type: 'done', tokenCount: 32 });
    expect(limited.lookUp(tokensOf(2 * BLOCK, 2)).end).toMatchObject({ type: 'done', tokenCount: 32 });
  });

  it('[H92] a restore renews recency, a refused one does not', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(BLOCK, 1), 'a');
    harness.drain();
    harness.submitChain(tokensOf(BLOCK, 2), 'b');
    harness.drain();
    expect(harness.lookUp(tokensOf(BLOCK, 1)).end).toMatchObject({ type: 'done' });
    expect(harness.lookUp(tokensOf(BLOCK, 2), { fingerprint: 'x' }).end).toMatchObject({ type: 'miss' });
    const limited = new Harness({ ...BLOCKS_ONLY, dir: harness.dir, maxBytes: 2 * PER_BLOCK - 1 });
    limited.drain();
    expect(limited.of('evicted').map((event) => event.block)).toEqual([chainSpecs(tokensOf(BLOCK, 2), BLOCK)[0]!.kv.blockHash]);
  });

  it('[H87] E02: a folder above its limit is brought under it at start, incompatible files first, the newest chain last', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(4 * BLOCK, 1), 'a');
    harness.drain();
    harness.submitChain(tokensOf(BLOCK, 2), 'b');
    harness.drain();
    const alien = new BlockPaths(harness.dir).block('ab'.repeat(32), 'kv');
    mkdirSync(join(alien, '..'), { recursive: true });
    const header = '{"__metadata__":{"tm.format":"7"}}';
    writeFileSync(alien, Buffer.concat([Buffer.from([header.length, 0, 0, 0, 0, 0, 0, 0]), Buffer.from(header), Buffer.alloc(20_000)]));
    utimesSync(alien, 1, 1);
    const everything = blockBytes(harness);

    const roomy = new Harness({ dir: harness.dir });
    roomy.drain();
    expect(roomy.of('note').filter((event) => event.code === 'FOREIGN_FILES')).toHaveLength(1);
    expect(roomy.of('evicted')).toEqual([]);

    const tight = new Harness({ ...BLOCKS_ONLY, dir: harness.dir, maxBytes: everything - 20_000 });
    tight.drain();
    expect(tight.tree()).not.toContain(alien.slice(harness.dir.length + 1));
    expect(tight.of('evicted')).toEqual([]);

    const tiny = new Harness({ ...BLOCKS_ONLY, dir: harness.dir, maxBytes: 1 });
    tiny.drain();
    // All but the chain that was used last.
    expect(tiny.lookUp(tokensOf(BLOCK, 2)).end).toMatchObject({ type: 'done', tokenCount: 16 });
    expect(tiny.tree()).toHaveLength(2);
  });

  it('[H90] at most 32 files go per save, the rest with later ones', () => {
    const harness = new Harness();
    for (let i = 0; i < 24; i += 1) harness.submitChain(tokensOf(BLOCK, 10 + i), `r${i}`);
    harness.drain();
    const counts: number[] = [];
    const limited = new Harness({ ...BLOCKS_ONLY, dir: harness.dir, maxBytes: 1 << 30 });
    limited.submitChain(tokensOf(BLOCK, 99), 'one');
    limited.submitChain(tokensOf(BLOCK, 98), 'two');
    limited.shrinkAfterStart(2 * PER_BLOCK);
    limited.drain();
    let count = 0;
    for (const event of limited.events) {
      if (event.type === 'evicted') count += 2;
      if (event.type === 'durable') counts.push(count);
    }
    expect(counts[0]).toBe(32);
    expect(counts[1]).toBeGreaterThan(32);
  });

  it('[H91] L17: a file that will not go stays in ledger and index, and is tried again', () => {
    let stuck = true;
    const harness = new Harness();
    harness.submitChain(tokensOf(BLOCK, 1), 'a');
    harness.drain();
    const refuse = (operation: string) => {
      if (operation === 'unlink' && stuck) throw Object.assign(new Error('EACCES'), { code: 'EACCES' });
    };
    const limited = new Harness({ ...BLOCKS_ONLY, dir: harness.dir, maxBytes: PER_BLOCK + 4096, hooks: { before: refuse } });
    limited.submitChain(tokensOf(BLOCK, 2), 'b');
    limited.drain((store) => expect(store.space.blockBytes).toBe(PER_BLOCK));
    expect(limited.of('evicted')).toEqual([]);
    expect(limited.of('failed')).toHaveLength(1);
    expect(limited.of('degraded')).toMatchObject([{ code: 'CACHE_FULL' }]);
    stuck = false;
    limited.submitChain(tokensOf(BLOCK, 2), 'c');
    limited.drain();
    expect(limited.of('evicted')).toHaveLength(1);
    expect(limited.of('durable')).toHaveLength(1);
  });

  it('the limit holds with nothing to evict: the unit fails, what is in use stays', () => {
    const harness = new Harness({ ...BLOCKS_ONLY, maxBytes: 90_000 });
    const tokens = tokensOf(12 * BLOCK);
    harness.submitChain(tokens, 'long');
    harness.drain();
    const kept = harness.of('durable').length;
    expect(kept).toBeGreaterThan(0);
    expect(kept + harness.of('failed').length).toBe(12);
    expect(harness.of('degraded')).toMatchObject([{ code: 'CACHE_FULL' }]);
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: kept * BLOCK });
    expect(harness.session.ledger.read()).toMatchObject({ captured: 12, durable: kept, failed: 12 - kept });
    expect(harness.session.pending.held).toBe(0);
  });
});
