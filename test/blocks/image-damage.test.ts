// A damaged block file is a miss with a reason, whatever was damaged. Must not happen: changed bytes taken as good.
import { describe, expect, it } from 'vitest';
import { buildImage, type ImageMiss, PagedBytes, verifyImage } from '../../src/shared/blocks/image.ts';
import { MISS_REASONS } from '../../src/shared/errors.ts';
import { chainSpecs, tokensOf } from './fixtures.ts';

const { kv, state } = chainSpecs(tokensOf(16), 16)[0]!;
const expected = { blockHash: kv.blockHash, parentHash: '', fingerprint: kv.fingerprint };
const check = (bytes: Uint8Array, part: 'kv' | 'state') => verifyImage(PagedBytes.of(bytes), { ...expected, part });

/** A valid file with header text replaced, the length kept. */
function withText(file: Uint8Array, from: string, to: string): Uint8Array {
  const copy = Buffer.from(file);
  const at = copy.indexOf(from);
  expect(at).toBeGreaterThan(0);
  expect(to.length).toBe(from.length);
  copy.write(to, at);
  return copy;
}

describe.each([
  ['kv', kv],
  ['state', state],
] as const)('damaged %s file', (part, spec) => {
  const file = buildImage(spec);

  it('is good before the damage', () => expect(check(file, part).ok).toBe(true));

  it('[A11][G79] each byte changed in turn, header included, is a miss with a reason', () => {
    for (let at = 0; at < file.length; at += 1) {
      for (const flip of [0x01, 0x80, 0xff]) {
        const copy = Uint8Array.from(file);
        copy[at]! ^= flip;
        const result = check(copy, part);
        expect(result.ok, `byte ${at} xor ${flip}`).toBe(false);
        expect(MISS_REASONS).toContain((result as ImageMiss).reason);
      }
    }
  });

  it('[A12] cut at every length, a miss; with bytes behind the end, a miss', () => {
    for (let length = 0; length < file.length; length += 1) expect(check(file.slice(0, length), part).ok, `cut at ${length}`).toBe(false);
    for (const extra of [1, 8, 4096]) expect(check(Buffer.concat([file, Buffer.alloc(extra)]), part)).toMatchObject({ ok: false, reason: 'truncated' });
  });

  it('[A12] all zeros at the right length, and zeros from every 8th byte on, are misses', () => {
    expect(check(new Uint8Array(file.length), part).ok).toBe(false);
    for (let from = 0; from < file.length; from += 8) {
      const copy = Uint8Array.from(file).fill(0, from);
      expect(check(copy, part).ok, `zeros from ${from}`).toBe(false);
    }
  });

  it('[G83][A10] an unknown version is told as such, before anything else is believed', () => {
    expect(check(withText(file, '"tm.format":"1"', '"tm.format":"9"'), part)).toMatchObject({ ok: false, reason: 'version' });
    expect(check(withText(file, '"tm.format"', '"xx.format"'), part)).toMatchObject({ ok: false, reason: 'version' });
  });

  it('another block, part or model than expected is refused', () => {
    expect(verifyImage(PagedBytes.of(file), { blockHash: 'a'.repeat(64) })).toMatchObject({ ok: false, reason: 'format' });
    expect(verifyImage(PagedBytes.of(file), { part: part === 'kv' ? 'state' : 'kv' })).toMatchObject({ ok: false, reason: 'format' });
    expect(verifyImage(PagedBytes.of(file), { fingerprint: 'other' })).toMatchObject({ ok: false, reason: 'fingerprint' });
  });
});

it('equal payloads of two blocks have different checksums, so that exchanged tensors are found', () => {
  const [first, second] = chainSpecs(tokensOf(32), 16) as [{ kv: typeof kv }, { kv: typeof kv }];
  const sums = [first.kv, { ...second.kv, layers: first.kv.layers }].map((spec) => {
    const file = PagedBytes.of(buildImage(spec));
    const image = verifyImage(file);
    if (!image.ok) throw new Error(image.detail);
    return [...image.tensors.values()].map((tensor) => tensor.sum);
  });
  expect(new Set(sums.flat()).size).toBe(4);
});
