// What goes into a block file comes out equal: order, nesting, empty places, types, shapes and bits.
// Must not happen: an element dropped, a type widened, bytes that depend on how memory is paged.
import { describe, expect, it } from 'vitest';
import { buildImage, fillImage, layersFromImage, layoutImage, PagedBytes, sealImage, verifyImage } from '../../src/shared/blocks/image.ts';
import { DTYPES, type LayerState } from '../../src/shared/layer-state.ts';
import { chainSpecs, plain, tensor, tokensOf } from './fixtures.ts';

const spec = chainSpecs(tokensOf(16), 16)[0]!.kv;

function roundTrip(layers: LayerState[]): LayerState[] {
  const file = PagedBytes.of(buildImage({ ...spec, layers }));
  const image = verifyImage(file);
  if (!image.ok) throw new Error(`${image.reason}: ${image.detail}`);
  return layersFromImage(image, file)!;
}

describe('block image round trip', () => {
  it('[B18][B19] every type keeps dtype, shape and bits', () => {
    const layers: LayerState[] = DTYPES.map((dtype, i) => ({ className: 'KVCache', stored: 'whole', meta: [i], elements: [tensor(dtype, [3, 5], i)] }));
    expect(plain(roundTrip(layers))).toEqual(plain(layers));
  });

  it('[A1][B21] any number of elements, with numbers and nothing between tensors, in order', () => {
    const layers: LayerState[] = [
      {
        className: 'X',
        stored: 'whole',
        meta: [1, 2, 3],
        elements: [tensor('F32', [2], 1), null, 5, Number.NaN, -0, Number.POSITIVE_INFINITY, tensor('U8', [3], 2)],
      },
    ];
    expect(plain(roundTrip(layers))).toEqual(plain(layers));
  });

  it('[B22] tensors with a zero dimension keep shape and dtype', () => {
    const layers: LayerState[] = [{ className: 'X', stored: 'whole', meta: [], elements: [tensor('BF16', [1, 0, 8], 1), tensor('F32', [], 2)] }];
    expect(plain(roundTrip(layers))).toEqual(plain(layers));
  });

  it('[B23] nested sub-states keep nesting, length and empty places', () => {
    const layers: LayerState[] = [
      {
        className: 'CacheList',
        stored: 'whole',
        meta: ['a', false],
        elements: [[tensor('F32', [2], 1), tensor('F32', [2], 2)], [null, [], [tensor('I8', [4], 3), null]], null],
      },
      { className: 'CacheList', stored: 'none', meta: [], elements: [] },
    ];
    expect(plain(roundTrip(layers))).toEqual(plain(layers));
  });

  it('[A2][G74] placeholders keep their class name; ranges and meta come back', () => {
    expect(plain(roundTrip([...spec.layers]))).toEqual(plain(spec.layers));
  });

  it('the file is the same however memory is paged, and sealing twice changes nothing', () => {
    const whole = buildImage(spec);
    const layout = layoutImage(spec);
    for (const pageBytes of [16, 64, 100, 4096]) {
      const pages = Array.from({ length: Math.ceil(layout.totalBytes / pageBytes) }, () => new Uint8Array(new SharedArrayBuffer(pageBytes)));
      const bytes = new PagedBytes(pages, pageBytes, layout.totalBytes);
      fillImage(layout, bytes);
      sealImage(bytes);
      expect(Buffer.from(bytes.slice(0, layout.totalBytes)).equals(whole)).toBe(true);
      sealImage(bytes);
      expect(verifyImage(bytes).ok).toBe(true);
    }
  });

  it('[D57] the file is its payload plus the header', () => {
    const layers: LayerState[] = [{ className: 'KVCache', stored: 'slice', range: [0, 16], meta: [], elements: [tensor('F32', [1024, 1024], 1)] }];
    const layout = layoutImage({ ...spec, layers });
    expect(layout.totalBytes - (4 << 20)).toBe(layout.header.length);
    expect(layout.header.length).toBeLessThan(4096);
  });

  it('a tensor whose bytes are not its shape times its type is refused', () => {
    const wrong = { ...tensor('F32', [2, 2], 1), byteLength: 15 };
    expect(() => layoutImage({ ...spec, layers: [{ className: 'X', stored: 'whole', meta: [], elements: [wrong] }] })).toThrow(/must have 16 bytes/);
  });
});
