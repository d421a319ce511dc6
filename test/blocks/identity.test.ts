// A block's hash covers everything that decides its bytes. Must not happen: two different contents under one hash.
import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { ChainHasher, tokenBytes, tokensFromBytes } from '../../src/shared/blocks/identity.ts';

const identity = { fingerprint: 'model', extraKeys: ['b', 'a'] };
const hasher = new ChainHasher(identity);

describe('block identity', () => {
  it('is the SHA-256 that docs/format.md describes', () => {
    const u32 = (n: number) => Buffer.from(Uint32Array.of(n).buffer);
    const str = (s: string) => Buffer.concat([u32(s.length), Buffer.from(s)]);
    const bytes = Buffer.concat([Buffer.from('tidemark-block-v1'), str('model'), u32(0), u32(3), u32(1), u32(2), u32(3), u32(2), str('a'), str('b')]);
    expect(hasher.block('', Uint32Array.of(1, 2, 3))).toBe(createHash('sha256').update(bytes).digest('hex'));
  });

  it('has these test vectors', () => {
    const first = hasher.block('', Uint32Array.of(1, 2, 3, 4));
    expect(first).toBe('985abbf7f42c80ecec313bed0b8e3779de4efd36f94460bc44a0535c07a447d0');
    expect(hasher.block(first, Uint32Array.of(5))).toBe('54252146e57ffb2081fc4fe10c0141ccf282df833db13d4f3adc2dea693c23d9');
    expect(new ChainHasher({ fingerprint: '', extraKeys: [] }).block('', new Uint32Array(0))).toBe(
      '0653235e6d6f88eb4c24ea8eff1165edea6503d1ac4a7f7227bc9ea23af1a3a0',
    );
  });

  it('changes with every input, and not with the order of extra keys', () => {
    const tokens = Uint32Array.of(1, 2, 3, 4);
    const all = [
      hasher.block('', tokens),
      hasher.block('0'.repeat(64), tokens),
      hasher.block('', Uint32Array.of(1, 2, 3)),
      hasher.block('', Uint32Array.of(1, 2, 4, 3)),
      new ChainHasher({ fingerprint: 'model2', extraKeys: ['a', 'b'] }).block('', tokens),
      new ChainHasher({ fingerprint: 'model', extraKeys: ['ab'] }).block('', tokens),
      new ChainHasher({ fingerprint: 'model', extraKeys: [] }).block('', tokens),
      new ChainHasher({ fingerprint: 'model', extraKeys: ['a', 'b', ''] }).block('', tokens),
    ];
    expect(new Set(all).size).toBe(all.length);
    expect(new ChainHasher({ fingerprint: 'model', extraKeys: ['a', 'b'] }).block('', tokens)).toBe(all[0]);
  });

  it('chains full blocks', () => {
    const tokens = Uint32Array.from({ length: 10 }, (_, i) => i);
    const hashes = hasher.fullBlocks(tokens, 4);
    expect(hashes).toHaveLength(2);
    expect(hashes[1]).toBe(hasher.block(hasher.block('', tokens.subarray(0, 4)), tokens.subarray(4, 8)));
  });

  it('token bytes are little-endian and come back', () => {
    expect([...tokenBytes(Uint32Array.of(0x01020304))]).toEqual([4, 3, 2, 1]);
    expect(tokensFromBytes(tokenBytes(Uint32Array.of(7, 2 ** 32 - 1)))).toEqual(Uint32Array.of(7, 2 ** 32 - 1));
    expect(tokensFromBytes(new Uint8Array(5))).toBeNull();
  });

  it('a parent that is no hash is refused', () => {
    expect(() => hasher.block('abc', Uint32Array.of(1))).toThrow(RangeError);
  });
});
