/**
 * Recurrent state at reduced precision: what is encoded, how far it is from what was captured, what is refused on either side.
 * Must not happen: another element changed by a bit, a NaN stored as a number, an encoding that cannot be believed decoded.
 */
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { quantizeRows } from '../../dist/engine-thread/boundary/state-codec/quantize.js';
import { rotationFactors } from '../../dist/engine-thread/boundary/state-codec/rotation.js';
import { buildImage } from '../../dist/shared/blocks/image.js';
import type { LayerState } from '../../dist/shared/layer-state.js';
import { keyToHex, requestKey } from '../../dist/shared/session/request-key.js';
import type { StateCodec } from '../../dist/shared/state-codecs.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { seeded } from '../helpers/seed.ts';
import { pathOf, type StoreFixture, startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { fromLayers, tensor, toLayers } from './layers.mjs';

watchLeaks();

const REDUCED = ['bf16', 'int8', 'rotated-int8', 'rotated-int16'] as const;
type Plain = { dtype: string; shape: number[]; bytes: Uint8Array };

const floats = (values: Float32Array | number[]): Uint8Array => new Uint8Array(Float32Array.from(values).buffer);
const valuesOf = (plain: Plain): Float32Array => new Float32Array(plain.bytes.slice().buffer);

/** Values of about 1, with one outlier in each row. */
function noise(shape: number[], purpose = 'state'): Plain {
  const random = seeded(purpose);
  const width = shape.at(-1)!;
  const count = shape.reduce((a, b) => a * b, 1);
  return tensor('F32', shape, floats(Array.from({ length: count }, (_, i) => (i % width === 3 ? 20 : 1) * (random.next() * 2 - 1))));
}

const SHAPE = [1, 3, 5, 64];
const conv = tensor('F32', [1, 3, 64], floats(Array.from({ length: 192 }, (_, i) => i / 7)));
const recurrent = (state: Plain | null, className = 'ArraysCache') => ({ className, stored: 'whole', meta: [], elements: [conv, state, conv, 3, null] });

function start(stateCodec?: StateCodec): Promise<StoreFixture & { warnings: string[] }> {
  const warnings: string[] = [];
  const options = { warn: (message: string) => warnings.push(message), ...(stateCodec === undefined ? {} : { stateCodec }) };
  return startStore({}, options).then((f) => Object.assign(f, { warnings }));
}

/** Saves and loads from memory and from the file; both must be the same. */
async function roundTrip(f: StoreFixture, count: number, layers: unknown[]) {
  f.gate.hold('create');
  expect(f.store.save('r', count, toLayers(layers))).toMatchObject({ ok: true });
  await f.gate.arrived('create');
  const pending = fromLayers(f.store.load('r', count).layers);
  f.gate.release('create');
  await f.event('written', count);
  expect(digest(fromLayers(f.store.load('r', count).layers))).toBe(digest(pending));
  return pending;
}

/** Comparing long arrays element by element is slow. */
const digest = (layers: unknown): string =>
  JSON.stringify(layers, (_, value) => (value instanceof Uint8Array ? createHash('sha256').update(value).digest('hex') : value));

/** The entries of a staged file's header. */
function header(f: StoreFixture, count: number) {
  const file = readFileSync(pathOf(f, 'r', count));
  const json = JSON.parse(file.subarray(8, 8 + Number(file.readBigUInt64LE(0))).toString());
  return { layers: JSON.parse(json.__metadata__['tm.layers']), tensors: json };
}

describe('state codecs', () => {
  it('[B30] by default, and with fp32, the state is stored as it is', async () => {
    for (const codec of [undefined, 'fp32'] as const) {
      const f = await start(codec);
      const state = noise(SHAPE);
      expect(await roundTrip(f, 1, [recurrent(state)])).toEqual([recurrent(state)]);
      expect(header(f, 1).layers[0].elements[1]).toEqual({ t: 'layers.0.1' });
      await f.close();
    }
  });

  it.each([
    ['bf16', 'BF16', 2 ** -8],
    ['int8', 'I8', 20 / 127 / 2],
    ['rotated-int8', 'I8', 0.12],
    ['rotated-int16', 'I16', 0.0005],
  ] as const)('[B30] %s encodes element 1 of a recurrent layer, names itself, and gives float32 back', async (codec, payload, tolerance) => {
    const f = await start(codec);
    const state = noise(SHAPE);
    const nested = noise([1, 2, 64], 'nested');
    const composite = {
      className: 'CacheList',
      stored: 'whole',
      meta: [],
      elements: [
        [conv, nested],
        [conv, conv],
      ],
      parts: [
        { className: 'ArraysCache', meta: [] },
        { className: 'KVCache', meta: [] },
      ],
    };
    const others = [
      recurrent(state, 'RotatingKVCache'),
      recurrent(tensor('F16', [1, 64], new Uint8Array(128).fill(7))),
      recurrent(tensor('F32', [64], floats(Array.from({ length: 64 }, (_, i) => i / 3)))),
      recurrent(null),
    ];
    const [first, second, ...rest] = await roundTrip(f, 1, [recurrent(state), composite, ...others]);
    expect(rest).toEqual(others);
    for (const [loaded, given] of [
      [first.elements[1], state],
      [second.elements[0][1], nested],
    ] as const) {
      expect([loaded.dtype, loaded.shape]).toEqual(['F32', given.shape]);
      const expected = valuesOf(given);
      valuesOf(loaded).forEach((value, i) => {
        const allowed = codec === 'bf16' ? Math.abs(expected[i]!) * tolerance : tolerance;
        expect(Math.abs(value - expected[i]!)).toBeLessThanOrEqual(allowed);
      });
    }
    // Everything else is untouched.
    expect({ ...first, elements: first.elements.toSpliced(1, 1) }).toEqual({ ...recurrent(null), elements: recurrent(null).elements.toSpliced(1, 1) });
    expect(second.elements.toSpliced(0, 1, [second.elements[0][0]])).toEqual([[conv], [conv, conv]]);

    const { layers, tensors } = header(f, 1);
    const isInteger = codec !== 'bf16';
    expect(layers[0].elements[1]).toEqual({
      t: 'layers.0.1',
      codec,
      source: 'F32',
      ...(codec.startsWith('rotated') ? { seed: 0, width: 64 } : {}),
      ...(isInteger ? { scale: 'layers.0.1.scale' } : {}),
    });
    expect(layers[1].elements[0][1]).toMatchObject({ t: 'layers.1.0.1', codec });
    expect(tensors['layers.0.1']).toMatchObject({ dtype: payload, shape: SHAPE });
    if (isInteger) expect(tensors['layers.0.1.scale']).toMatchObject({ dtype: 'F32', shape: [1, 3, 5, 1] });
    expect(Object.keys(tensors).filter((name) => name.endsWith('.scale'))).toEqual(isInteger ? ['layers.0.1.scale', 'layers.1.0.1.scale'] : []);
    await f.close();
  });

  it('[B30] the stored bits are those that the document describes', async () => {
    const f = await start('int8');
    const state = tensor('F32', [1, 2, 4], floats([1, -0.5, 0.25, 127 / 254, 0, 0, 0, 0]));
    const [layer] = await roundTrip(f, 1, [recurrent(state)]);
    // Ties go to the even neighbour: -63.5 → -64, 31.75 → 32, 63.5 → 64. A row of zeros has scale 1.
    const scale = Math.fround(1 / 127);
    expect([...valuesOf(layer.elements[1])]).toEqual([...[127, -64, 32, 64].map((n) => Math.fround(n * scale)), 0, 0, 0, 0]);
    await f.close();
    const g = await start('bf16');
    const bits = Uint32Array.of(0x3f808000, 0x3f818000, 0x3f808001, 0x80000000, 0x00000001, 0x7f7f0000, 0xc0490fdb, 0x3f807fff);
    const rounded = Uint32Array.of(0x3f800000, 0x3f820000, 0x3f810000, 0x80000000, 0x00000000, 0x7f7f0000, 0xc0490000, 0x3f800000);
    const [other] = await roundTrip(g, 1, [recurrent(tensor('F32', [2, 4], new Uint8Array(bits.buffer)))]);
    expect(other.elements[1].bytes).toEqual(new Uint8Array(rounded.buffer));
    await g.close();
  });

  it('[B30] scales, integers and signs are those of docs/format.md', () => {
    const document = readFileSync(new URL('../../docs/format.md', import.meta.url), 'utf8').replaceAll(/\s+/g, ' ');
    const row = Float32Array.of(1, -0.5, 0.25, 0.5);
    const scale = new Float32Array(1);
    const bits = () => new Uint32Array(scale.buffer)[0]!.toString(16);
    const signs = (width: number) => Array.from(rotationFactors(width), (factor) => (factor < 0 ? '-' : '+')).join(' ');
    const int8 = new Int8Array(4);
    quantizeRows(row, 4, 127, false, int8, scale);
    expect(document).toContain(`under \`int8\` has the scale \`${bits()}\` (bits) and the integers ${[...int8].join(', ')};`);
    const int16 = new Int16Array(4);
    quantizeRows(row, 4, 32767, true, int16, scale);
    expect(document).toContain(`under \`rotated-int16\` the scale \`${bits()}\` and the integers ${[...int16].join(', ')}.`);
    expect(document).toContain(`the signs of width 8 are \`${signs(8)}\`, of width 4 \`${signs(4)}\``);
  });

  it.each(REDUCED)('[B30] %s: any shape, long tensors read in chunks, tensors without elements, the smallest and the largest values', async (codec) => {
    const f = await start(codec);
    const wide = noise([1, 3, 2 ** 15], 'wide');
    const many = noise([1, 20_000, 16], 'many');
    const [layer, other] = await roundTrip(f, 1, [recurrent(wide), recurrent(many)]);
    for (const [loaded, given] of [
      [layer.elements[1], wide],
      [other.elements[1], many],
    ] as const) {
      const expected = valuesOf(given);
      const worst = valuesOf(loaded).reduce((most, value, i) => Math.max(most, Math.abs(value - expected[i]!)), 0);
      expect(worst).toBeLessThan(0.5);
      expect(worst).toBeGreaterThan(0);
    }
    const empty = tensor('F32', [1, 0, 8], new Uint8Array(0));
    const extremes = tensor('F32', [3, 2], floats([2 ** -149, -(2 ** -149), 2 ** 126, 0, 2 ** -130, 2 ** -126]));
    const [e, x] = await roundTrip(f, 2, [recurrent(empty), recurrent(extremes)]);
    expect(e.elements[1]).toEqual(empty);
    const back = valuesOf(x.elements[1]);
    expect(Math.abs(back[2]! / 2 ** 126 - 1)).toBeLessThan(0.01);
    for (const i of [0, 1, 4, 5]) expect(Math.abs(back[i]!)).toBeLessThan(2 ** -125);
    await f.settled();
    await f.close();
  });

  it.each(REDUCED)('[B31] %s: a value that is not finite refuses the whole snapshot, is counted, and nothing is written', async (codec) => {
    const f = await start(codec);
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
      const state = noise(SHAPE);
      new DataView(state.bytes.buffer).setFloat32(4 * 777, bad, true);
      expect(f.store.save('r', 1024, toLayers([recurrent(noise(SHAPE)), recurrent(state)]))).toEqual({
        ok: false,
        reason: 'nonfinite',
        detail: `A recurrent state [1,3,5,64] holds a value that is not finite; codec ${codec} cannot store it.`,
      });
      expect(f.store.has('r', 1024)).toBe(false);
      expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'absent' });
    }
    expect(f.session.ledger.read()).toMatchObject({ captured: 3, pending: 0, dropped: { nonfinite: 3 } });
    expect(f.session.pending.held).toBe(0);
    expect(f.files()).toEqual([]);
    // Only what is encoded is looked at: the same values elsewhere are stored bit for bit.
    const free = recurrent(tensor('F32', [2, 2], floats([1, 2, 3, 4])));
    free.elements[0] = tensor('F32', [2], floats([Number.NaN, Number.POSITIVE_INFINITY]));
    expect((await roundTrip(f, 1024, [free]))[0].elements[0]).toEqual(free.elements[0]);
    await f.settled();
    await f.close();
  });

  it('[B31] so does a scale that is not finite: values whose rotation, rounding or scale leaves float32', async () => {
    const largest = 3.4028234663852886e38;
    // A row of one magnitude with the signs of the rotation itself ends up in one place, eight times as large.
    const f = await start('rotated-int8');
    const overflowing = tensor('F32', [1, 64], floats(Array.from(rotationFactors(64), (factor) => Math.sign(factor) * largest)));
    expect(f.store.save('r', 1, toLayers([recurrent(overflowing)]))).toEqual({
      ok: false,
      reason: 'nonfinite',
      detail: 'A recurrent state [1,64] has a row whose scale is not finite; codec rotated-int8 cannot store it.',
    });
    expect(f.session.ledger.read().dropped).toEqual({ nonfinite: 1 });
    await f.settled();
    await f.close();
    const g = await start('bf16');
    expect(g.store.save('r', 1, toLayers([recurrent(tensor('F32', [1, 2], floats([largest, 1])))]))).toMatchObject({ ok: false, reason: 'nonfinite' });
    await g.settled();
    await g.close();
    const h = await start('int8');
    const saved = h.store.save('r', 1, toLayers([recurrent(tensor('F32', [1, 2], floats([largest, 1])))]));
    // Whichever way the scale rounds: what is stored comes back finite, or is refused.
    if (saved.ok) expect(h.store.load('r', 1)).toMatchObject({ ok: true });
    else expect(saved.reason).toBe('nonfinite');
    await h.settled();
    await h.close();
  });

  it('[B32] a width that cannot be rotated is stored as float32, counted by tensor, and told once for the store', async () => {
    for (const codec of ['rotated-int8', 'rotated-int16'] as const) {
      const f = await start(codec);
      const odd = [recurrent(noise([1, 2, 96])), recurrent(noise([1, 2, 1, 48], 'b')), recurrent(noise([1, 2, 32], 'c'))];
      const [a, b, c] = await roundTrip(f, 1, odd);
      expect([a, b]).toEqual(odd.slice(0, 2));
      expect(c).not.toEqual(odd[2]);
      expect(header(f, 1).layers.map((layer: { elements: { codec?: string }[] }) => layer.elements[1]!.codec)).toEqual([undefined, undefined, codec]);
      await roundTrip(f, 2, odd);
      expect(f.session.codecFallbacks).toBe(4);
      expect(f.warnings).toEqual([`Recurrent state of width 96 is stored as float32: codec ${codec} needs a width that is a power of two.`]);
      await f.close();
    }
    const f = await start('int8');
    expect(await roundTrip(f, 1, [recurrent(noise([1, 2, 96]))])).not.toEqual([recurrent(noise([1, 2, 96]))]);
    expect([f.session.codecFallbacks, f.warnings]).toEqual([0, []]);
    await f.close();
  });

  it('[B33] an encoding that is not exactly what an encoder writes is a miss, counted and told', async () => {
    const f = await start();
    await roundTrip(f, 1024, [recurrent(noise([1, 2, 4]))]);
    const scale = tensor('F32', [1, 2, 1], floats([1, 2]));
    const i8 = tensor('I8', [1, 2, 4], new Uint8Array(8).fill(5));
    const i16 = tensor('I16', [1, 2, 4], new Uint8Array(16).fill(5));
    const bf16 = tensor('BF16', [1, 2, 4], new Uint8Array(16).fill(0x3f));
    const int8 = { codec: 'int8', source: 'F32', scale };
    const rotated = { codec: 'rotated-int8', source: 'F32', scale, seed: 0, width: 4 };
    const scaleOf = (values: number[]) => tensor('F32', [1, 2, 1], floats(values));
    const sound: [string, Plain, object][] = [
      ['int8', i8, int8],
      ['rotated-int8', i8, rotated],
      ['rotated-int16', i16, { ...rotated, codec: 'rotated-int16' }],
      ['bf16', bf16, { codec: 'bf16', source: 'F32' }],
    ];
    const broken: [string, Plain, object][] = [
      ['an unknown codec', i8, { ...int8, codec: 'int4' }],
      ['a name from Object.prototype', i8, { ...int8, codec: 'toString' }],
      ['fp32 as a codec', i8, { ...int8, codec: 'fp32' }],
      ['no scale', i8, { ...int8, scale: undefined }],
      ['a scale of another shape', i8, { ...int8, scale: tensor('F32', [1, 2], floats([1, 2])) }],
      ['a scale for the whole tensor', i8, { ...int8, scale: tensor('F32', [1, 1, 1], floats([1])) }],
      ['a scale of another type', i8, { ...int8, scale: tensor('F16', [1, 2, 1], new Uint8Array(4).fill(0x3c)) }],
      ['a scale of 0', i8, { ...int8, scale: scaleOf([1, 0]) }],
      ['a scale below 0', i8, { ...int8, scale: scaleOf([1, -1]) }],
      ['a scale that is no number', i8, { ...int8, scale: scaleOf([Number.NaN, 1]) }],
      ['an infinite scale', i8, { ...int8, scale: scaleOf([1, Number.POSITIVE_INFINITY]) }],
      ['a scale under bf16', bf16, { codec: 'bf16', source: 'F32', scale }],
      ['int16 under int8', i16, int8],
      ['int8 under rotated-int16', i8, { ...rotated, codec: 'rotated-int16' }],
      ['int8 under bf16', i8, { codec: 'bf16', source: 'F32' }],
      ['float32 under int8', tensor('F32', [1, 2, 4], new Uint8Array(32)), int8],
      ['a seed under int8', i8, { ...int8, seed: 0 }],
      ['a width under int8', i8, { ...int8, width: 4 }],
      ['a rotation under bf16', bf16, { codec: 'bf16', source: 'F32', seed: 0, width: 4 }],
      ['a rotation without seed', i8, { ...rotated, seed: undefined }],
      ['a rotation without width', i8, { ...rotated, width: undefined }],
      ['another seed', i8, { ...rotated, seed: 1 }],
      ['another width', i8, { ...rotated, width: 8 }],
      ['a width that is no power of two', tensor('I8', [1, 2, 3], new Uint8Array(6)), { ...rotated, width: 3 }],
      ['another source type', i8, { ...int8, source: 'F16' }],
      ['bf16 values that are not finite', tensor('BF16', [1, 2, 4], new Uint8Array(16).fill(0xff)), { codec: 'bf16', source: 'F32' }],
      ['values that leave float32', tensor('I8', [1, 2, 4], new Uint8Array(8).fill(127)), { ...int8, scale: scaleOf([3e38, 1]) }],
    ];
    const load = (payload: Plain, encoding: object) => {
      const [layer] = toLayers([recurrent(payload)]) as [LayerState];
      const withScale =
        'scale' in encoding && encoding.scale !== undefined ? { ...encoding, scale: toLayers([{ elements: [encoding.scale] }])[0].elements[0] } : encoding;
      const elements = layer.elements.map((element, i) => (i === 1 ? { ...(element as object), encoding: withScale } : element)) as LayerState['elements'];
      const image = buildImage({
        part: 'state',
        blockHash: keyToHex(requestKey('r')!),
        parentHash: '',
        start: 1024,
        end: 1024,
        blockSize: 0,
        tokens: new Uint32Array(0),
        fingerprint: '',
        layers: [{ ...layer, elements }],
      });
      writeFileSync(pathOf(f, 'r', 1024), image);
      return f.store.load('r', 1024);
    };
    for (const [what, payload, encoding] of sound) expect(load(payload, encoding), what).toMatchObject({ ok: true });
    expect([f.session.codecRefused, f.warnings]).toEqual([0, []]);
    for (const [what, payload, encoding] of broken) expect(load(payload, encoding), what).toMatchObject({ ok: false, reason: 'codec' });
    expect(f.session.codecRefused).toBe(broken.length);
    expect(f.warnings).toHaveLength(broken.length);
    expect(f.warnings[0]).toMatch(/codec int4 has a codec that this build does not know/);
    await f.close();
  });
});
