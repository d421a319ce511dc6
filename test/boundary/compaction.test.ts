/**
 * Append-only pools inside a state: a boundary stores its own block's rows, a chain of blocks gives the pool back.
 * Must not happen: a row stored twice or not at all, a pool shorter than its token count asks for, files that grow with the
 * square of the prompt.
 */
import { statSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { compactElements, compactPools } from '../../dist/engine-thread/boundary/compaction.js';
import { joinStates } from '../../dist/engine-thread/boundary/join-states.js';
import { unitBytes } from '../../dist/engine-thread/boundary/publish.js';
import { continuesEarlier, encodeLayers } from '../../dist/shared/blocks/layer-tree.js';
import type { LayerState } from '../../dist/shared/layer-state.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { runSeed, seeded } from '../helpers/seed.ts';
import { pathOf, type StoreFixture, startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fromLayers, tensor, toLayers } from './layers.mjs';

watchLeaks();

const WIDTH = 3;
const row = (r: number) => [r, r + 0.5, -r];
const floats = (values: number[]) => new Uint8Array(Float32Array.from(values).buffer);
/** Rows [start, end) of a pool whose row r holds numbers made of r. */
const rows = (start: number, end: number) =>
  tensor('F32', [1, end - start, WIDTH], floats(Array.from({ length: end - start }, (_, i) => row(start + i)).flat()));
const filler = (value: number, bytes = 4) => tensor('U8', [1, bytes], new Uint8Array(bytes).fill(value));

/** A composite layer as it is after `tokens` tokens: a rotating window of 2 and a pool of 3 or 5. */
function pooled(tokens: number, ratio: number, elements = 3, length = Math.floor(tokens / ratio)) {
  const pool = [filler(1), filler(2), rows(0, length), filler(4), null].slice(0, elements);
  return {
    className: 'CacheList',
    stored: 'whole',
    meta: [],
    elements: [[filler(8), filler(9)], pool],
    parts: [
      { className: 'RotatingKVCache', meta: [32] },
      { className: 'PoolingCache', meta: [ratio], ratio },
    ],
  };
}

function save(f: StoreFixture, count: number, layers: unknown[], blockSize?: number) {
  const saved = f.store.save('r', count, toLayers(layers), blockSize === undefined ? {} : { blockSize });
  expect(saved).toMatchObject({ ok: true });
  return f.store.load('r', count);
}

/** The plain form of what `save` stored. */
const stored = (f: StoreFixture, count: number, layers: unknown[], blockSize?: number) => fromLayers(save(f, count, layers, blockSize).layers);

describe('compaction of append-only pools', () => {
  it('[B25] of a pool with ratio R, rows floor(prev / R) to floor(T / R) are stored and named, with 3 and with 5 elements', async () => {
    const f = await startStore();
    let count = 0;
    for (const [tokens, ratio, blockSize, start, end] of [
      [512, 4, 256, 64, 128],
      [256, 4, 256, 0, 64],
      // A tail in the middle of a block begins at the last boundary, not at T - B.
      [300, 4, 256, 64, 75],
      [257, 4, 256, 64, 64],
      // Blocks that the ratio does not divide.
      [48, 7, 16, 4, 6],
      [50, 7, 16, 6, 7],
      [20, 32, 16, 0, 0],
    ] as const) {
      for (const elements of [3, 5]) {
        const given = pooled(tokens, ratio, elements);
        f.store.cleanupRequest('r');
        const [layer] = stored(f, tokens, [given], blockSize);
        expect(layer.rows, `T ${tokens}, R ${ratio}, B ${blockSize}`).toEqual([{ at: [1, 2], ratio, start, end }]);
        const pool = given.elements[1]!;
        expect(layer.elements).toEqual([given.elements[0], [pool[0], pool[1], rows(start, end), ...pool.slice(3)]]);
        expect(layer.parts).toEqual(given.parts);
        count++;
      }
    }
    expect(count).toBe(14);
    f.store.cleanupAll();
    await f.settled();
    await f.close();
  });

  it('[B25] the stored file holds the rows of the block only, and is never asked for more', async () => {
    const f = await startStore();
    const layers = toLayers([pooled(4096, 4)]);
    const pool = layers[0].elements[1][2];
    const { copyTo } = pool;
    const asked: number[] = [];
    pool.copyTo = (target: Uint8Array, from: number) => {
      asked.push(from, from + target.length);
      copyTo(target, from);
    };
    f.store.save('r', 4096, layers, { blockSize: 256 });
    expect([Math.min(...asked), Math.max(...asked)]).toEqual([960 * WIDTH * 4, 1024 * WIDTH * 4]);
    await f.event('written', 4096);
    expect(statSync(pathOf(f, 'r', 4096)).size).toBeLessThan(64 * WIDTH * 4 + 2048);
    expect(fromLayers(f.store.load('r', 4096).layers)[0].elements[1][2]).toEqual(rows(960, 1024));
    await f.close();
  });

  it('[B26] what is not exactly a pool of that ratio is stored whole, without a range', async () => {
    const f = await startStore();
    const odd: [string, number, object, number | undefined][] = [
      ['one row too many', 256, pooled(256, 4, 3, 65), 128],
      ['one row too few', 256, pooled(256, 4, 3, 63), 128],
      ['four elements', 256, pooled(256, 4, 4), 128],
      [
        'two elements',
        256,
        {
          ...pooled(256, 4),
          elements: [
            [filler(8), filler(9)],
            [filler(1), filler(2)],
          ],
        },
        128,
      ],
      [
        'ratio 0',
        256,
        {
          ...pooled(256, 4),
          parts: [
            { className: 'A', meta: [] },
            { className: 'PoolingCache', meta: [], ratio: 0 },
          ],
        },
        128,
      ],
      [
        'ratio below 0',
        256,
        {
          ...pooled(256, 4),
          parts: [
            { className: 'A', meta: [] },
            { className: 'PoolingCache', meta: [], ratio: -4 },
          ],
        },
        128,
      ],
      [
        'no ratio',
        256,
        {
          ...pooled(256, 4),
          parts: [
            { className: 'A', meta: [] },
            { className: 'PoolingCache', meta: [] },
          ],
        },
        128,
      ],
      [
        'another class',
        256,
        {
          ...pooled(256, 4),
          parts: [
            { className: 'A', meta: [] },
            { className: 'B', meta: [], ratio: 4 },
          ],
        },
        128,
      ],
      ['no parts', 256, { ...pooled(256, 4), parts: undefined }, 128],
      ['block size 0', 256, pooled(256, 4), 0],
      ['block size below 0', 256, pooled(256, 4), -16],
      ['no tensor for a pool', 256, { ...pooled(256, 4), elements: [[filler(8)], [filler(1), filler(2), null]] }, 128],
      ['a batch', 256, { ...pooled(256, 4), elements: [[filler(8)], [filler(1), filler(2), tensor('U8', [2, 64], new Uint8Array(128))]] }, 128],
    ];
    for (const [what, tokens, layer, blockSize] of odd) {
      f.store.cleanupRequest('r');
      const { parts, ...rest } = layer as { parts?: object };
      expect(stored(f, tokens, [layer], blockSize), what).toEqual([{ ...rest, ...(parts === undefined ? {} : { parts }) }]);
    }
    f.store.cleanupAll();
    await f.settled();
    await f.close();
  });

  it('[B27] a chain of deltas gives the whole pool back, whatever the ratio, block size and length', () => {
    const random = seeded('pool chains');
    for (let i = 0; i < 60; i++) {
      const [ratio, blockSize, tokens] = [random.integer(1, 40), 16 * random.integer(1, 4), random.integer(1, 200)];
      const what = `seed ${runSeed}: ratio ${ratio}, block size ${blockSize}, ${tokens} tokens`;
      const joined = joinStates(chainOf(tokens, ratio, blockSize, random.pick([3, 5])).states, tokens);
      expect(joined.ok && fromLayers(joined.layers)[0].elements[1][2], what).toEqual(rows(0, Math.floor(tokens / ratio)));
      expect(joined.ok && joined.layers.every((layer) => layer.rows === undefined), what).toBe(true);
    }
  });

  it('[B27] a chain that went through files gives the whole pool back; one with a file gone is a miss', async () => {
    const f = await startStore();
    const boundaries = [16, 32, 48, 57];
    for (const count of boundaries) save(f, count, [pooled(count, 4, 5)], 16);
    await f.settled();
    const load = (count: number): LayerState[] => f.store.load('r', count).layers;
    const joined = joinStates(boundaries.map(load), 57);
    expect(joined.ok && fromLayers(joined.layers)).toEqual([pooled(57, 4, 5)]);
    expect(joinStates([16, 48, 57].map(load), 57)).toMatchObject({ ok: false, reason: 'gap' });
    await f.close();
  });

  it('[B27] bytes of a joined pool are read in any pieces', () => {
    const { states } = chainOf(100, 3, 16, 3);
    const joined = joinStates(states, 100);
    const pool = (joined as { layers: LayerState[] }).layers[0]!.elements[1] as never as { byteLength: number; copyTo(t: Uint8Array, from: number): void }[];
    const whole = rows(0, 33).bytes as Uint8Array;
    for (const [from, length] of [
      [0, 1],
      [59, 2],
      [60, 61],
      [0, whole.length],
      [whole.length, 0],
      [13, 300],
    ] as const) {
      const target = new Uint8Array(length);
      pool[2]!.copyTo(target, from);
      expect(target).toEqual(whole.subarray(from, from + length));
    }
  });

  it('[B27] a missing part, another order or a wrong length is a miss, never a shorter pool', () => {
    const { states } = chainOf(100, 4, 16, 3);
    const tip = states.at(-1)!;
    expect(joinStates(states, 100)).toMatchObject({ ok: true });
    const gap = { ok: false, reason: 'gap' };
    for (const [i] of states.entries()) if (i < states.length - 1) expect(joinStates(states.toSpliced(i, 1), 100), `without ${i}`).toMatchObject(gap);
    expect(joinStates([], 100)).toMatchObject(gap);
    expect(joinStates([tip], 100)).toMatchObject(gap);
    expect(joinStates([states[1]!, states[0]!, ...states.slice(2)], 100)).toMatchObject(gap);
    expect(joinStates([...states.slice(0, 3), states[2]!, ...states.slice(3)], 100)).toMatchObject(gap);
    expect(joinStates([...states.slice(0, -1), states[0]!, tip], 100)).toMatchObject(gap);
    // The tip is not the state at that token count.
    expect(joinStates(states, 104)).toMatchObject({ ok: false, reason: 'format' });
    const changed = (change: (layer: LayerState) => LayerState) => [states[0]!.map(change), ...states.slice(1)];
    const other = (dtype: string, shape: number[], bytes: number) =>
      changed((layer) => ({
        ...layer,
        elements: [layer.elements[0]!, [null, null, toLayers([{ elements: [tensor(dtype, shape, new Uint8Array(bytes))] }])[0].elements[0]]],
      }));
    expect(joinStates(other('F32', [1, 3, WIDTH], 36), 100), 'fewer rows than stated').toMatchObject(gap);
    expect(joinStates(other('F16', [1, 4, WIDTH], 24), 100), 'another type').toMatchObject(gap);
    expect(joinStates(other('F32', [1, 4, 2 * WIDTH], 96), 100), 'another width').toMatchObject(gap);
    expect(
      joinStates(
        changed((layer) => ({ ...layer, rows: [{ at: [1, 2], ratio: 2, start: 0, end: 4 }] })),
        100,
      ),
      'another ratio',
    ).toMatchObject(gap);
    expect(
      joinStates(
        changed((layer) => ({ ...layer, elements: [] })),
        100,
      ),
      'no pool',
    ).toMatchObject(gap);
    expect(joinStates([[], ...states.slice(1)], 100), 'no layer').toMatchObject(gap);
  });

  it('[B27] only states that continue earlier rows need the blocks before; one stored whole starts a chain', () => {
    const { states, wholes } = chainOf(96, 4, 16, 3);
    expect(states.map((state) => continuesEarlier(encodeLayers(state).json))).toEqual([false, true, true, true, true, true]);
    expect(joinStates([states[0]!], 16)).toMatchObject({ ok: true });
    expect(joinStates([wholes[2]!, ...states.slice(3)], 96)).toMatchObject({ ok: true });
    expect(joinStates([wholes[1]!, ...states.slice(3)], 96)).toMatchObject({ ok: false, reason: 'gap' });
    expect(joinStates([toLayers(block(1))], 96)).toMatchObject({ ok: true });
  });

  it('[B28] with a block size the pools are compacted first, then the family’s own elements; without one neither', async () => {
    const order: string[] = [];
    const compressed = compactElements('LayerCache', [1, 2], (layer) => layer.meta[0] as number);
    const f = await startStore(
      {},
      {
        compaction: (layers, point) => {
          order.push(`family sees rows ${JSON.stringify(layers[0]!.rows)} at ${point.tokenCount} of ${point.blockSize}`);
          return compressed(layers, point);
        },
      },
    );
    // Compressed attention: a window, entries and index keys with a row for each 4 tokens, what is not compressed yet.
    const family = { className: 'LayerCache', stored: 'whole', meta: [4], elements: [filler(1), rows(0, 40), rows(0, 40), filler(2), filler(3)] };
    const given = [pooled(160, 8), family];
    const [pool, own] = stored(f, 160, given, 64);
    expect(order).toEqual(['family sees rows [{"at":[1,2],"ratio":8,"start":16,"end":20}] at 160 of 64']);
    expect(pool.elements[1][2]).toEqual(rows(16, 20));
    expect(own.rows).toEqual([
      { at: [1], ratio: 4, start: 32, end: 40 },
      { at: [2], ratio: 4, start: 32, end: 40 },
    ]);
    expect(own.elements).toEqual([filler(1), rows(32, 40), rows(32, 40), filler(2), filler(3)]);
    f.store.cleanupRequest('r');
    expect(stored(f, 160, given)).toEqual(given);
    expect(order).toHaveLength(1);
    f.store.cleanupAll();
    await f.settled();
    await f.close();
  });

  it('[B28] both kinds of deltas are joined by the same chain', () => {
    const compressed = compactElements('LayerCache', [1, 2], () => 4);
    const at = (tokens: number) =>
      compressed(toLayers([{ className: 'LayerCache', stored: 'whole', meta: [], elements: [filler(1), rows(0, Math.floor(tokens / 4)), null] }]), {
        tokenCount: tokens,
        blockSize: 16,
      });
    const joined = joinStates([at(16), at(32), at(39)], 39);
    expect(joined.ok && fromLayers(joined.layers)[0].elements).toEqual([filler(1), rows(0, 9), null]);
    expect(joinStates([at(16), at(39)], 39)).toMatchObject({ ok: false, reason: 'gap' });
  });

  it('[B29] state and key-value files of 40 boundaries grow linearly with tokens', async () => {
    const f = await startStore({ pendingMaxBytes: 16 * 1024 * 1024 });
    const blockSize = 256;
    const sums: number[] = [];
    let total = 0;
    for (let i = 1; i <= 40; i++) {
      const tokens = i * blockSize;
      save(f, tokens, [pooled(tokens, 4), pooled(tokens, 128)], blockSize);
      await f.event('written', tokens);
      const slice = tensor('U8', [1, 2, blockSize, 4], new Uint8Array(2 * blockSize * 4));
      const kv = toLayers([
        { className: 'KVCache', stored: 'slice', range: [tokens - blockSize, tokens], meta: [tokens, 256, tokens], elements: [slice, slice] },
      ]);
      const unit = {
        requestNo: 0,
        requestId: 'r',
        tokenCount: tokens,
        hash: '0'.repeat(64),
        parent: '',
        tokens: new Uint32Array(blockSize),
        blockSize,
        fingerprint: '',
        kv,
        hasState: true,
      };
      total += statSync(pathOf(f, 'r', tokens)).size + unitBytes(unit);
      sums.push(total);
    }
    // Twice the tokens, twice the bytes: headers differ by the digits of their numbers.
    for (const i of [5, 10, 20]) expect(Math.abs(sums[2 * i - 1]! / sums[i - 1]! - 2), `${i} against ${2 * i} boundaries`).toBeLessThan(0.02);
    const whole = statSync(pathOf(f, 'r', 40 * blockSize)).size;
    expect(whole).toBeLessThan(1.1 * statSync(pathOf(f, 'r', blockSize)).size);
    await f.settled();
    await f.close();
  });
});

/** The states at each block's end up to `tokens`, whole and compacted. */
function chainOf(tokens: number, ratio: number, blockSize: number, elements: number): { states: LayerState[][]; wholes: LayerState[][] } {
  const ends = Array.from({ length: Math.ceil(tokens / blockSize) }, (_, i) => Math.min((i + 1) * blockSize, tokens));
  const wholes = ends.map((end) => toLayers([pooled(end, ratio, elements)]) as LayerState[]);
  return { wholes, states: wholes.map((whole, i) => [...compactPools(whole, { tokenCount: ends[i]!, blockSize })]) };
}
