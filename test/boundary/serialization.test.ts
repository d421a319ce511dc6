/**
 * Bits in, bits out: every type, any number of elements, holes and nesting, through the arena and through a file.
 * Must not happen: a dropped element, a changed type, a bit of a NaN lost, an MLX call off the engine thread.
 */
import { existsSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { DTYPE_BYTES, DTYPES } from '../../dist/shared/layer-state.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { dist } from '../helpers/paths.ts';
import { seeded } from '../helpers/seed.ts';
import { pathOf, type StoreFixture, startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fromLayers, tensor, toLayers } from './layers.mjs';

watchLeaks();

const layer = (elements: unknown[], className = 'ArraysCache') => ({ className, stored: 'whole', meta: [], elements });

/** Saves, loads from memory, waits for the file, loads from it: both must equal what was given. */
async function roundTrip(f: StoreFixture, count: number, layers: unknown[]): Promise<void> {
  f.gate.hold('create');
  expect(f.store.save('r', count, toLayers(layers)).ok).toBe(true);
  await f.gate.arrived('create');
  expect(fromLayers(f.store.load('r', count).layers), 'from memory').toEqual(layers);
  f.gate.release('create');
  await f.event('written', count);
  expect(fromLayers(f.store.load('r', count).layers), 'from the file').toEqual(layers);
}

describe('serialization', () => {
  it('[B16] writer, session and file layer reach nothing of MLX but the call that copies a lease', () => {
    const seen = new Set<string>();
    const loads: string[] = [];
    const visit = (file: string): void => {
      if (seen.has(file)) return;
      seen.add(file);
      for (const [, path] of readFileSync(file, 'utf8').matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)) {
        const target = join(dirname(file), path!);
        if (basename(target) === 'binding.js') loads.push(basename(file));
        if (existsSync(target)) visit(target);
      }
    };
    visit(dist('snapshot-writer/main'));
    expect(seen.size).toBeGreaterThan(10);
    const ofMlx = [...seen].filter((file) => /tidemark_mlx|[\\/]mlx[\\/]|native-mlx/.test(file));
    expect(ofMlx.map((file) => basename(file)).sort()).toEqual(['binding.js', 'lease-access.js']);
    expect(loads).toEqual(['lease-access.js']);
  });

  it('[B17] the bytes are copied, and the arrays let go, before a save waits for the cap', async () => {
    const f = await startStore({ reserveWaitMs: 30, overflow: 'drop' });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    const order: string[] = [];
    const layers = toLayers(block(1, 10_000));
    const { copyTo } = layers[0].elements[0];
    layers[0].elements[0].copyTo = (target: Uint8Array, from: number) => {
      if (order.at(-1) !== 'copied') order.push('copied');
      copyTo(target, from);
    };
    const { addBackpressure } = f.session.pending;
    f.session.pending.addBackpressure = (ms) => {
      order.push('waited');
      addBackpressure.call(f.session.pending, ms);
    };
    f.store.save('r', 1024, layers, { onCopied: () => order.push('released') });
    expect(order).toEqual(['copied', 'released', 'waited']);
    others.release();
    await f.settled();
    await f.close();
  });

  it('[B18] bf16 with an odd number of elements keeps its bits, pending and written', async () => {
    const f = await startStore();
    await roundTrip(f, 1, [
      layer([
        tensor(
          'BF16',
          [1, 7],
          Uint8Array.from({ length: 14 }, (_, i) => i * 17),
        ),
      ]),
    ]);
    await f.close();
  });

  it('[B19] every type keeps type, shape and bits: NaN payloads, infinities, negative zero, subnormals, extremes', async () => {
    const f = await startStore();
    const random = seeded('dtypes');
    const special = [0x7fc00001, 0xffc12345, 0x7f800000, 0xff800000, 0x80000000, 0x00000001, 0x807fffff, 0xffffffff];
    let count = 1;
    for (const dtype of DTYPES) {
      const size = DTYPE_BYTES[dtype];
      const patterns = new Uint8Array(special.length * 8);
      for (const [i, word] of special.entries()) new DataView(patterns.buffer).setUint32(i * 8, word, true);
      const bytes = dtype === 'BOOL' ? Uint8Array.from({ length: 64 }, (_, i) => i % 2) : Uint8Array.from(patterns);
      const noise = dtype === 'BOOL' ? bytes : random.bytes(24 * size);
      await roundTrip(f, count++, [layer([tensor(dtype, [2, bytes.length / size / 2], bytes), tensor(dtype, [noise.length / size], noise)])]);
    }
    await f.close();
  });

  it('[B20] only the bytes of a slice are taken: the source is asked for exactly its length, in pieces', async () => {
    const f = await startStore();
    const asked: [number, number][] = [];
    const layers = toLayers(block(1, 10_000));
    const { copyTo } = layers[0].elements[0];
    layers[0].elements[0].copyTo = (target: Uint8Array, from: number) => {
      asked.push([from, target.length]);
      copyTo(target, from);
    };
    f.store.save('r', 1024, layers);
    let next = 0;
    for (const [from, length] of asked) {
      expect(from).toBe(next);
      next += length;
    }
    expect(next).toBe(10_000);
    await f.settled();
    expect(asked.reduce((sum, [, length]) => sum + length, 0)).toBe(10_000);
    await f.close();
  });

  it('[B21] any number of elements, with nothing and numbers between tensors, comes back in order', async () => {
    const f = await startStore();
    const t = (n: number) => tensor('U8', [n], new Uint8Array(n).fill(n));
    await roundTrip(f, 1, [layer([t(1), null, t(2), 7, t(3), -0.5, null]), layer([null, null]), layer([]), layer([t(4), t(5)])]);
    await f.close();
  });

  it('[B22] a tensor with a zero dimension keeps shape and type', async () => {
    const f = await startStore();
    await roundTrip(f, 1, [
      layer([tensor('BF16', [1, 0, 8], new Uint8Array(0)), tensor('F32', [], Uint8Array.from([1, 2, 3, 4])), tensor('I64', [0], new Uint8Array(0))]),
    ]);
    await f.close();
  });

  it('[B23] nested states keep their nesting, lengths, sub-state classes and empty places; one without a tensor is a placeholder', async () => {
    const f = await startStore();
    const t = (n: number) => tensor('F16', [n], new Uint8Array(2 * n).fill(n));
    const parts = [
      { className: 'RotatingKVCache', meta: [8, 'ring', true] },
      { className: 'PoolingCache', meta: [4], ratio: 4 },
      { className: 'Empty', meta: [] },
    ];
    const composite = { ...layer([[t(1), t(2)], [t(3), null, [t(4), 5]], []], 'CacheList'), parts };
    await roundTrip(f, 1, [composite, { className: 'CacheList', stored: 'none', meta: [], elements: [] }]);
    const hollow = { ...layer([[null, null], [], [[null, 3]]], 'CacheList'), meta: [7], parts };
    f.store.save('r', 2, toLayers([hollow, layer([null, null]), layer([t(1)])]));
    await f.settled();
    expect(fromLayers(f.store.load('r', 2).layers)).toEqual([
      { className: 'CacheList', stored: 'none', meta: [], elements: [] },
      layer([null, null]),
      layer([t(1)]),
    ]);
    await f.close();
  });

  it('[B24] a file of another layout under the boundary’s name is refused as an old version, not mixed in', async () => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    const header = Buffer.from(
      JSON.stringify({
        __metadata__: { num_layers: '1' },
        layer_0_0: { dtype: 'U8', shape: [4], data_offsets: [0, 4] },
        layer_0_1: { dtype: 'U8', shape: [4], data_offsets: [4, 8] },
      }),
    );
    const prefix = Buffer.alloc(8);
    prefix.writeBigUInt64LE(BigInt(header.length));
    const { writeFileSync } = await import('node:fs');
    writeFileSync(pathOf(f, 'r', 1024), Buffer.concat([prefix, header, Buffer.alloc(8, 1)]));
    expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'version' });
    await f.close();
  });

  it('[B34] a layer that stands at another token, or has a part that does, is not stored under this one', async () => {
    const f = await startStore();
    const t = tensor('U8', [2], Uint8Array.of(1, 2));
    const parts = (offset?: number) => [
      { className: 'RotatingKVCache', meta: [] },
      { className: 'PoolingCache', meta: [], ...(offset === undefined ? {} : { offset }) },
    ];
    const composite = (offset?: number) => ({ ...layer([[t], [t]], 'CacheList'), parts: parts(offset) });
    for (const [what, layers] of [
      ['the layer itself', [layer([t]), { ...layer([t]), offset: 1023 }]],
      ['a part of it', [layer([t]), composite(1025)]],
      ['a layer that is cut by token', [{ className: 'KVCache', stored: 'none', meta: [], elements: [], offset: 1000 }, layer([t])]],
    ] as const) {
      const saved = f.store.save('r', 1024, toLayers(layers as never));
      expect(saved, what).toMatchObject({ ok: false, reason: 'offset' });
      expect(f.store.has('r', 1024), what).toBe(false);
    }
    expect(f.session.ledger.read()).toMatchObject({ captured: 3, dropped: { offset: 3 } });
    // The offset itself is not stored: where layers agree it is the boundary's token count.
    const agreeing = [layer([t]), { ...layer([t]), offset: 1024 }, composite(1024)];
    expect(f.store.save('r', 1024, toLayers(agreeing))).toMatchObject({ ok: true });
    await f.settled();
    expect(fromLayers(f.store.load('r', 1024).layers)).toEqual([layer([t]), layer([t]), composite()]);
    await f.close();
  });

  it('a state of several pages, and one larger than the cap, come back whole', async () => {
    const f = await startStore({ pendingMaxBytes: 100_000 });
    const random = seeded('large');
    await roundTrip(f, 1, [layer([tensor('U8', [50_001], random.bytes(50_001)), tensor('U8', [3], random.bytes(3))])]);
    await f.settled();
    await roundTrip(f, 2, [layer([tensor('U8', [250_003], random.bytes(250_003))])]);
    await f.settled();
    await f.close();
  });
});
