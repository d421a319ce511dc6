// Files that are not ours to use: later versions, damaged headers, other models, other block sizes. Must not happen: one of them
// read into a sequence, or removed only because it is another's.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ChainHasher } from '../../src/shared/blocks/identity.ts';
import { buildImage, type ImageSpec } from '../../src/shared/blocks/image.ts';
import { BlockPaths } from '../../src/shared/blocks/paths.ts';
import type { BlockStore } from '../../src/store-worker/block-store.ts';
import { chainSpecs, EXTRA_KEYS, kvLayers, stateLayers } from './fixtures.ts';
import { BLOCK, Harness, tokensOf } from './harness.ts';

function write(dir: string, hash: string, part: 'kv' | 'state', bytes: Uint8Array): string {
  const path = new BlockPaths(dir).block(hash, part);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, bytes);
  return path;
}

/** The same file with header text replaced by text of the same length. */
function changed(file: Uint8Array, from: string, to: string): Buffer {
  const copy = Buffer.from(file);
  const at = copy.indexOf(from);
  expect(at, from).toBeGreaterThan(0);
  expect(to).toHaveLength(from.length);
  copy.write(to, at);
  return copy;
}

describe('a scan', () => {
  it.each([
    ['of a later version', '"tm.format":"1"', '"tm.format":"7"', 'kept'],
    ['without a version', '"tm.format":"1"', '"tm.formaT":"1"', 'kept'],
    ['whose layer types are no JSON', '\\"KVCache\\"', '\\"KVCache\\\\', 'removed'],
    ['whose meta states are no JSON', '\\"meta\\":[', '\\"meta\\":x', 'removed'],
  ] as const)('[G83] does not use a file %s', (_, from, to, fate) => {
    const harness = new Harness();
    const tokens = tokensOf(2 * BLOCK);
    const chain = harness.submitChain(tokens, 'a');
    harness.drain();
    const hash = chain[1]!.kv.blockHash;
    const path = new BlockPaths(harness.dir).block(hash, 'kv');
    writeFileSync(path, changed(readFileSync(path), from, to));
    // Without the index every header is read.
    for (const suffix of ['', '-wal', '-shm']) rmSync(join(harness.dir, `index.sqlite${suffix}`), { force: true });
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 16 });
    expect(harness.tree().includes(path.slice(harness.dir.length + 1))).toBe(fate === 'kept');
    if (fate === 'kept') expect(harness.of('note').find(({ code }) => code === 'FOREIGN_FILES')?.details).toMatchObject({ files: 1, reasons: { version: 1 } });
    else expect(harness.of('note').some(({ code }) => code === 'FORMAT_INVALID')).toBe(true);
  });
});

describe('blocks of others in the same folder', () => {
  it('[H85] of another model, numerics class or layout: not used, not deleted, counted; each miss says what differs', () => {
    const harness = new Harness({ otherBytes: () => 0 });
    const tokens = tokensOf(2 * BLOCK);
    const identities = [
      { fingerprint: 'another model', extraKeys: EXTRA_KEYS },
      { fingerprint: 'f'.repeat(64), extraKeys: [...EXTRA_KEYS, 'salt:other'] },
    ];
    for (const identity of identities) {
      const own = tokens.slice(0, BLOCK);
      const blockHash = new ChainHasher(identity).block('', own);
      const common = { blockHash, parentHash: '', start: 0, end: BLOCK, blockSize: BLOCK, tokens: own, fingerprint: identity.fingerprint };
      write(harness.dir, blockHash, 'kv', buildImage({ ...common, part: 'kv', layers: kvLayers(1, 0, BLOCK) }));
      write(harness.dir, blockHash, 'state', buildImage({ ...common, part: 'state', layers: stateLayers(1) }));
    }
    expect(harness.lookUp(tokens).end).toMatchObject({
      type: 'miss',
      reason: 'fingerprint',
      detail: expect.stringContaining('another salt or numerics class'),
    });
    const third = harness.lookUp(tokens, { fingerprint: 'a third model' });
    expect(third.end).toMatchObject({ type: 'miss', reason: 'fingerprint', detail: expect.stringContaining('another model or configuration') });
    expect(harness.tree()).toHaveLength(4);
    harness.drain((store) => expect(store.space.tracked).toBe(4 * 4096));
    // Each is still there for whom it is of.
    for (const identity of identities) expect(harness.lookUp(tokens, identity).end).toMatchObject({ type: 'done', tokenCount: 16 });
  });

  it('[H85] of another block size: its full blocks are none of ours, and stay', () => {
    const harness = new Harness();
    const tokens = tokensOf(4 * BLOCK);
    harness.submitChain(tokens, 'a', 2 * BLOCK);
    harness.drain();
    // Blocks of 32 tokens are not blocks of 16; nothing is deleted for that.
    expect(harness.lookUp(tokens)).toMatchObject({ end: { type: 'miss' }, parts: [] });
    expect(harness.tree()).toHaveLength(4);
    expect(harness.lookUp(tokens, { blockSize: 2 * BLOCK }).end).toMatchObject({ type: 'done', tokenCount: 64 });
  });

  it('[H85] a block is named by what it holds: one that ends within a block of another size is a good beginning for it', () => {
    const harness = new Harness();
    const tokens = tokensOf(4 * BLOCK);
    harness.submitChain(tokens, 'a');
    harness.drain();
    const { end, parts } = harness.lookUp(tokens, { blockSize: 2 * BLOCK });
    expect(end).toMatchObject({ type: 'done', tokenCount: BLOCK });
    expect(parts.map(({ part, start, end: at }) => `${part} ${start} ${at}`)).toEqual(['kv 0 16', 'state 0 16']);
  });
});

describe('a block that is stored again', () => {
  it('[G78] is not written, and its recency is renewed: the other one goes first', () => {
    const harness = new Harness();
    for (const seed of [1, 2]) {
      harness.submitChain(tokensOf(BLOCK, seed), `r${seed}`);
      harness.drain();
    }
    const before = harness.tree();
    harness.submitChain(tokensOf(BLOCK, 1), 'again');
    harness.drain();
    expect(harness.tree()).toEqual(before);
    const limited = new Harness({ dir: harness.dir, otherBytes: () => 0, maxBytes: 2 * 8192 - 1 });
    limited.drain();
    expect(limited.of('evicted').map(({ block }) => block)).toEqual([chainSpecs(tokensOf(BLOCK, 2), BLOCK)[0]!.kv.blockHash]);
  });

  it('[G78] takes the place of a file that another model left under its name', () => {
    const harness = new Harness();
    const tokens = tokensOf(BLOCK);
    const [only] = harness.submitChain(tokens, 'a') as { kv: ImageSpec; state: ImageSpec }[];
    harness.drain();
    write(harness.dir, only!.kv.blockHash, 'kv', buildImage({ ...only!.kv, fingerprint: 'another model' }));
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'miss', reason: 'fingerprint' });
    // In the life that met it (each drain is a life of its own here), the name is free for the block it belongs to.
    let store: BlockStore | null = null;
    harness.submitChain(tokens, 'b');
    harness.drain((opened) => {
      store = opened;
      opened.forget(only!.kv.blockHash);
      expect(opened.foreign).toHaveLength(2);
    });
    // The new file is no stranger: making room must not take it for one.
    expect(store!).toMatchObject({ foreign: [], space: { foreignBytes: 0 } });
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 16, reason: null });
  });
});
