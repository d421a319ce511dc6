/**
 * From MLX arrays to bytes: captures of real caches, on the stream of the thread that owns them.
 * Must not happen: a wait for the device per layer, an array that lives on while its bytes wait for the disk, bytes of more
 * than the slice that was captured, work on another stream.
 */
import { existsSync, readFileSync } from 'node:fs';
import { describe, expect, it, vi } from 'vitest';
import { fillImage, layersFromImage, layoutImage, PagedBytes, verifyImage } from '../../dist/shared/blocks/image.js';
import type { LayerState } from '../../dist/shared/layer-state.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { seeded } from '../helpers/seed.ts';
import { pathOf, type StoreFixture, startStore } from './fixture.ts';

// Must be set before the addon is loaded: its test ops open files with MLX's own loader.
vi.stubEnv('TIDEMARK_TEST_OPS', '1');

// Two stream threads, and the four that MLX's loader reads with: it never ends them.
watchLeaks({ nativeThreads: 6 });

/** Calls into MLX that wait for the device, or read bytes; wrapped before any module takes the functions. */
const calls: string[] = [];
const native = (await import('../../dist/engine-thread/mlx/binding.js')).mlx();
for (const name of ['evaluate', 'asyncEvaluate', 'wait', 'synchronize', 'itemNumber', 'readBytes', 'readMany'] as const) {
  const original = native[name] as (...args: never[]) => never;
  (native as unknown as Record<string, unknown>)[name] = (...args: never[]) => {
    const what = name === 'readMany' ? 'readBytes' : name;
    if (calls.at(-1) !== what || what !== 'readBytes') calls.push(what);
    return original(...args);
  };
}
const mx = await import('../../dist/engine-thread/mlx/ops.js');
const { ArraysCache, KvCache, PendingCapture, storedDtype } = await import('../../dist/engine-thread/cache/index.js');
const { BoundaryRecorder } = await import('../../dist/engine-thread/boundary/recorder.js');
const { RestoreAttempt } = await import('../../dist/engine-thread/boundary/restore-attempt.js');
const { RestoreBuilder } = await import('../../dist/engine-thread/boundary/restore-builder.js');
const { ChainHasher } = await import('../../dist/shared/blocks/identity.js');

type Cache = InstanceType<typeof ArraysCache> | InstanceType<typeof KvCache>;
type Captured = Parameters<ConstructorParameters<typeof BoundaryRecorder>[0]['sink']['put']>[0];

const s = mx.openEngineStream('cpu');
const KV = { heads: 2, keyDim: 8, valueDim: 4, dtype: 'bfloat16' } as const;
const ARRAYS = [
  { shape: [3, 16], dtype: 'bfloat16' },
  { shape: [2, 4, 32], dtype: 'float32' },
] as const;

/** Lazy numbers that differ for each seed. */
function numbers(shape: readonly number[], dtype: 'bfloat16' | 'float32', seed: number) {
  const count = shape.reduce((a, b) => a * b, 1);
  return mx.astype(mx.reshape(mx.sin(mx.arange(seed, seed + count, 1, 'float32', s), s), shape, s), dtype, s);
}

/** What a model of four layers leaves behind a step: keys and values evaluated with the step, recurrent state still lazy. */
function step(caches: readonly Cache[], tokens: number): void {
  mx.scope(() => {
    for (const [i, cache] of caches.entries()) {
      if (cache instanceof KvCache) {
        cache.append(numbers([1, 2, tokens, 8], 'bfloat16', i), numbers([1, 2, tokens, 4], 'bfloat16', i + 1), tokens, s);
      } else {
        ARRAYS.forEach(({ shape, dtype }, k) => {
          cache.set(k, numbers([1, ...shape], dtype, 10 * i + k + cache.offset));
        });
        cache.advance(tokens);
      }
    }
    mx.evaluate(caches.filter((cache) => cache instanceof KvCache).flatMap((cache) => cache.tensors()));
  });
}

const makeCaches = (): Cache[] => [new ArraysCache(ARRAYS), new KvCache(KV), new ArraysCache(ARRAYS), new KvCache(KV)];
const release = (caches: readonly Cache[]) => {
  for (const cache of caches) cache.release();
};

/** A recorder whose sink saves the state as the engine does, and copies the rows into a private image. */
function recorder(f: StoreFixture, blockSize: number, onPut: (block: Captured) => void = () => undefined) {
  const dropped: string[] = [];
  const sink = {
    prepare: () => null,
    put(block: Captured) {
      onPut(block);
      const saved = f.store.save(block.requestId, block.end, block.state!, { blockSize, onCopied: block.stateCopied });
      if (!saved.ok) return saved.reason === 'failed' ? ('closed' as const) : saved.reason;
      const common = { blockHash: block.hash, parentHash: block.parent, start: block.start, end: block.end, tokens: block.tokens };
      const layout = layoutImage({ part: 'kv', blockSize, fingerprint: '', layers: block.kv, ...common });
      fillImage(layout, PagedBytes.of(new Uint8Array(layout.totalBytes)));
      return 'accepted' as const;
    },
    has: () => false,
    dropped: (reason: string) => void dropped.push(reason),
    requestEnded: () => undefined,
  };
  const hasher = new ChainHasher({ fingerprint: 'model', extraKeys: [] });
  const parts = { sink, hasher, stream: s, blockSize, persist: 'boundary', requestId: 'r', requestNo: 1, hasFixedState: true } as const;
  return { recorder: new BoundaryRecorder(parts), dropped };
}

const bytesOf = (element: LayerState['elements'][number]): Uint8Array => {
  const { byteLength, copyTo } = element as { byteLength: number; copyTo(target: Uint8Array, from: number): void };
  const bytes = new Uint8Array(byteLength);
  copyTo(bytes, 0);
  return bytes;
};
const tokens = Array.from({ length: 64 }, (_, i) => i);

describe('capture of MLX arrays', () => {
  it.each(['fp32', 'rotated-int16'] as const)(
    '[B16] [B31] all layers of a boundary cost one evaluation, before the first byte is read (%s)',
    async (stateCodec) => {
      const f = await startStore({}, { stateCodec });
      const caches = makeCaches();
      step(caches, 16);
      calls.length = 0;
      recorder(f, 16).recorder.capture(caches, tokens, 16, true);
      expect(calls).toEqual(['evaluate', 'readBytes']);
      expect(f.store.has('r', 16)).toBe(true);
      await f.settled();
      // Nor does reading it back touch MLX.
      expect(f.store.load('r', 16)).toMatchObject({ ok: true });
      expect(calls).toEqual(['evaluate', 'readBytes']);
      release(caches);
      await f.close();
    },
  );

  it('[B16] a boundary that is announced before its pass is evaluated with the pass: none of its own is left', async () => {
    const f = await startStore();
    const caches = makeCaches();
    step(caches, 16);
    const { recorder: r } = recorder(f, 16);
    const companion = r.announce(caches, tokens, 16)!;
    calls.length = 0;
    mx.evaluate([...companion.built()]);
    companion.running();
    r.capture(caches, tokens, 16, true);
    expect(calls).toEqual(['evaluate', 'readBytes']);
    expect(f.store.has('r', 16)).toBe(true);
    await f.settled();
    release(caches);
    await f.close();
  });

  it('[B31] a value that is not finite shows without a further wait, and nothing of the boundary is stored', async () => {
    const f = await startStore({}, { stateCodec: 'int8' });
    const caches = makeCaches();
    step(caches, 16);
    (caches[2] as InstanceType<typeof ArraysCache>).set(1, mx.mul(numbers([1, 2, 4, 32], 'float32', 3), Number.POSITIVE_INFINITY, s));
    calls.length = 0;
    recorder(f, 16).recorder.capture(caches, tokens, 16, true);
    expect(calls).toEqual(['evaluate', 'readBytes']);
    expect(f.store.has('r', 16)).toBe(false);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, dropped: { nonfinite: 1 } });
    await f.settled();
    release(caches);
    await f.close();
  });

  it('[B17] while a save waits for room, only raw bytes are held: the arrays of the snapshot are gone', async () => {
    const f = await startStore({ reserveWaitMs: 30, overflow: 'drop' });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    const caches = makeCaches();
    step(caches, 16);
    const before = mx.handleCount();
    const held: number[] = [];
    const { addBackpressure } = f.session.pending;
    f.session.pending.addBackpressure = (ms) => {
      held.push(mx.handleCount() - before);
      addBackpressure.call(f.session.pending, ms);
    };
    let during = 0;
    recorder(f, 16, () => {
      during = mx.handleCount() - before;
    }).recorder.capture(caches, tokens, 16, true);
    expect(during).toBe(4);
    expect(held).toEqual([0]);
    others.release();
    await f.settled();
    release(caches);
    await f.close();
  });

  it('[B18] [B19] [B22] every type of MLX keeps dtype, shape and bits from an array to an array, pending and from the file', async () => {
    const f = await startStore();
    const random = seeded('mlx types');
    const types = [
      'bool',
      'uint8',
      'uint16',
      'uint32',
      'uint64',
      'int8',
      'int16',
      'int32',
      'int64',
      'float16',
      'bfloat16',
      'float32',
      'float64',
      'complex64',
    ] as const;
    const nans = Uint8Array.from([1, 0, 0xc0, 0x7f, 0, 0, 0x80, 0xff, 0, 0, 0, 0x80, 1, 0, 0, 0, 0x45, 0x23, 0xc1, 0xff, 0xff, 0xff, 0x7f, 0x80]);
    const given = types.map((dtype) => {
      const size = mx.nbytes(mx.zeros([1], dtype, s));
      // An odd number of elements; the first ones are NaNs with payloads, infinities, negative zero and subnormals of float32.
      const bytes = Uint8Array.from([...nans, ...random.bytes(9 * size)].slice(0, 9 * size), (byte) => (dtype === 'bool' ? byte & 1 : byte));
      return { dtype, bytes };
    });
    const captures = given.map(({ dtype, bytes }) => {
      const elements = [mx.fromBytes(bytes, [1, 3, 3], dtype), mx.zeros([1, 0, 8], dtype, s), null, mx.fromBytes(bytes.slice(0, bytes.length / 9), [], dtype)];
      return new PendingCapture('ArraysCache', 'whole', undefined, [7], elements);
    });
    mx.evaluate(captures.flatMap((capture) => capture.tensors()));
    const check = () => {
      const loaded = f.store.load('r', 7) as { layers: LayerState[] };
      given.forEach(({ dtype, bytes }, i) => {
        const [values, empty, nothing, scalar] = loaded.layers[i]!.elements as [
          LayerState['elements'][number] & { shape: number[]; dtype: string },
          never,
          null,
          never,
        ];
        expect(values.dtype).toBe(storedDtype(dtype));
        const back = mx.fromBytes(bytesOf(values), values.shape, dtype);
        expect([mx.dtypeOf(back), mx.shapeOf(back)]).toEqual([dtype, [1, 3, 3]]);
        const target = new Uint8Array(bytes.length);
        mx.readBytes(back, 0, target);
        expect(target, dtype).toEqual(bytes);
        const none = mx.fromBytes(bytesOf(empty), (empty as { shape: number[] }).shape, dtype);
        expect([mx.dtypeOf(none), mx.shapeOf(none)], 'a zero dimension').toEqual([dtype, [1, 0, 8]]);
        expect(nothing).toBeNull();
        expect(bytesOf(scalar)).toEqual(bytes.subarray(0, bytes.length / 9));
      });
    };
    f.gate.hold('create');
    expect(
      f.store.save(
        'r',
        7,
        captures.map((capture) => capture.toLayerState()),
      ),
    ).toMatchObject({ ok: true });
    for (const capture of captures) capture.release();
    await f.gate.arrived('create');
    mx.scope(check);
    f.gate.release('create');
    await f.event('written', 7);
    mx.scope(check);
    await f.close();
  });

  it('[B19] MLX’s own loader opens a staged file with every type', async (test) => {
    const load = native.testLoadSafetensors;
    if (load === undefined) return test.skip('this build of the addon has no test op for the loader; build it again');
    const f = await startStore();
    // MLX's loader knows no F64.
    const types = ['bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64', 'float16', 'bfloat16', 'float32', 'complex64'] as const;
    const random = seeded('mlx loader');
    const given = types.map((dtype) => random.bytes(6 * mx.nbytes(mx.zeros([1], dtype, s))).map((byte) => (dtype === 'bool' ? byte & 1 : byte)));
    const captures = types.map((dtype, i) => {
      return new PendingCapture('ArraysCache', 'whole', undefined, [7], [mx.fromBytes(given[i]!, [2, 3], dtype), mx.zeros([1, 0, 8], dtype, s)]);
    });
    mx.evaluate(captures.flatMap((capture) => capture.tensors()));
    f.store.save(
      'r',
      7,
      captures.map((capture) => capture.toLayerState()),
    );
    for (const capture of captures) capture.release();
    await f.event('written', 7);
    const path = pathOf(f, 'r', 7);
    mx.scope(() => {
      types.forEach((dtype, i) => {
        const [values, empty] = [`layers.${i}.0`, `layers.${i}.1`].map((name) => load(path, name, s)) as [never, never];
        mx.evaluate([values, empty]);
        expect([mx.dtypeOf(values), mx.shapeOf(values)]).toEqual([dtype, [2, 3]]);
        expect([mx.dtypeOf(empty), mx.shapeOf(empty)]).toEqual([dtype, [1, 0, 8]]);
        const target = new Uint8Array(given[i]!.length);
        mx.readBytes(values, 0, target);
        expect(target, dtype).toEqual(given[i]);
      });
    });
    await f.settled();
    await f.close();
  });

  it('[B20] of lazy slices and clones the bytes of the slice are taken, and nothing is evaluated later', async () => {
    const f = await startStore();
    const whole = mx.retain(mx.reshape(mx.arange(0, 8000, 1, 'float32', s), [1, 1000, 8], s));
    const rows = mx.slice(whole, [0, 10, 0], [1, 20, 8], s);
    const columns = mx.contiguous(mx.slice(whole, [0, 0, 2], [1, 1000, 4], s), s);
    const half = mx.slice(mx.astype(whole, 'bfloat16', s), [0, 999, 0], [1, 1000, 8], s);
    const clone = mx.copy(rows, s);
    const capture = new PendingCapture('ArraysCache', 'whole', undefined, [5], [rows, columns, half, clone]);
    expect(mx.status(whole)).toBe('unscheduled');
    mx.evaluate(capture.tensors());
    const state = capture.toLayerState();
    expect(state.elements.map((element) => (element as { byteLength: number }).byteLength)).toEqual([320, 8000, 16, 320]);
    f.gate.hold('create');
    calls.length = 0;
    expect(f.store.save('r', 5, [state], { onCopied: () => capture.release() })).toMatchObject({ ok: true });
    mx.release(whole);
    const expected = (from: number, to: number) => new Uint8Array(Float32Array.from({ length: to - from }, (_, i) => from + i).buffer);
    const check = () => {
      const [a, b, c, d] = (f.store.load('r', 5) as { layers: LayerState[] }).layers[0]!.elements.map(bytesOf) as [
        Uint8Array,
        Uint8Array,
        Uint8Array,
        Uint8Array,
      ];
      expect(a).toEqual(expected(80, 160));
      expect(d).toEqual(a);
      expect([...new Float32Array(b.buffer).subarray(0, 4)]).toEqual([2, 3, 10, 11]);
      // 7992 to 7999 as bfloat16, which rounds them to multiples of 32.
      expect([...new Uint16Array(c.buffer)].map((bits) => new Float32Array(Uint32Array.of(bits << 16).buffer)[0])).toEqual(Array(8).fill(8000));
    };
    await f.gate.arrived('create');
    check();
    f.gate.release('create');
    await f.event('written', 5);
    check();
    expect(calls).toEqual(['readBytes']);
    expect(readFileSync(pathOf(f, 'r', 5)).length).toBeLessThan(320 + 8000 + 16 + 320 + 1500);
    await f.close();
  });

  it('[B21] [B23] a composite capture keeps numbers, empty places, nesting and what its parts are; its arrays go together', async () => {
    const f = await startStore();
    const before = mx.handleCount();
    const parts = [
      { className: 'ArraysCache', meta: [1] },
      { className: 'PoolingCache', meta: [], ratio: 4 },
    ];
    const array = (seed: number) => numbers([1, 4, 8], 'float32', seed);
    const capture = mx.scope(() => {
      const elements = [[array(1), null, { number: 7 }, array(2)], [null, { number: -0.5 }, array(3)], { number: 3 }];
      return new PendingCapture('CacheList', 'whole', undefined, [16], elements, { parts, offset: 16 });
    });
    expect([capture.tensors().length, capture.bytes()]).toEqual([3, 3 * 128]);
    calls.length = 0;
    mx.evaluate(capture.tensors());
    expect(f.store.save('r', 16, [capture.toLayerState()], { blockSize: 16, onCopied: () => capture.release() })).toMatchObject({ ok: true });
    expect(calls).toEqual(['evaluate', 'readBytes']);
    expect(mx.handleCount()).toBe(before);
    await f.settled();
    const [layer] = (f.store.load('r', 16) as { layers: LayerState[] }).layers as [LayerState];
    const kinds = (elements: readonly unknown[]): unknown[] =>
      elements.map((e) => (Array.isArray(e) ? kinds(e) : typeof e === 'object' && e !== null ? (e as { shape: number[] }).shape : e));
    expect(kinds(layer.elements)).toEqual([[[1, 4, 8], null, 7, [1, 4, 8]], [null, -0.5, [1, 4, 8]], 3]);
    expect([layer.className, layer.parts, layer.rows]).toEqual(['CacheList', parts, [{ at: [1, 2], ratio: 4, start: 0, end: 4 }]]);
    await f.close();
  });

  it('[B34] a layer that stands at another token keeps the boundary from being stored under this one', async () => {
    const f = await startStore();
    const caches = makeCaches();
    step(caches, 16);
    (caches[2] as InstanceType<typeof ArraysCache>).advance(1);
    const { recorder: r, dropped } = recorder(f, 16);
    calls.length = 0;
    r.capture(caches, tokens, 16, true);
    expect(dropped).toEqual(['offset']);
    expect(calls).toEqual([]);
    // Also when the state comes to the store by another way: the capture carries the layer's own count.
    const capture = (caches[2] as InstanceType<typeof ArraysCache>).capture(0, 17, s);
    mx.evaluate(capture.tensors());
    expect(f.store.save('r', 16, [capture.toLayerState()])).toMatchObject({ ok: false, reason: 'offset' });
    expect(f.store.save('r', 17, [capture.toLayerState()])).toMatchObject({ ok: true });
    capture.release();
    await f.settled();
    expect(f.store.has('r', 16)).toBe(false);
    release(caches);
    await f.close();
  });

  it('[B36] capture and save put no op on any stream but the engine’s', async () => {
    const f = await startStore({}, { stateCodec: 'rotated-int8' });
    const caches = makeCaches();
    // Another stream is the thread's default: whatever forgot its stream would land there.
    const other = mx.newStream('cpu');
    mx.setDefaultStream(other);
    step(caches, 16);
    const before = mx.foreignStreamOps();
    recorder(f, 16).recorder.capture(caches, tokens, 16, true);
    expect(f.store.has('r', 16)).toBe(true);
    expect(mx.foreignStreamOps()).toBe(before);
    mx.zeros([1], 'float32', other);
    expect(mx.foreignStreamOps()).toBe(before + 1);
    mx.setDefaultStream(s);
    await f.settled();
    release(caches);
    await f.close();
  });
});

describe('restore of encoded state', () => {
  it('[B30] live caches get float32 back, close to what was captured; all else bit for bit', async () => {
    const f = await startStore({}, { stateCodec: 'rotated-int16' });
    const caches = [new ArraysCache(ARRAYS), new ArraysCache(ARRAYS)];
    step(caches, 16);
    mx.evaluate(caches.flatMap((cache) => cache.tensors()));
    recorder(f, 16).recorder.capture(caches, tokens, 16, true);
    await f.settled();
    const builder = new RestoreBuilder({ makeCaches: () => [new ArraysCache(ARRAYS), new ArraysCache(ARRAYS)] });
    const part = partOf(f, 16);
    builder.add(part);
    const restored = builder.finish(16) as InstanceType<typeof ArraysCache>[];
    caches.forEach((cache, i) => {
      const [conv, state] = cache.tensors().map((t) => mx.toFloat32Array(t)) as [Float32Array, Float32Array];
      const [conv2, state2] = restored[i]!.tensors().map((t) => mx.toFloat32Array(t)) as [Float32Array, Float32Array];
      expect(mx.dtypeOf(restored[i]!.tensors()[1]!)).toBe('float32');
      expect(conv2).toEqual(conv);
      const worst = state.reduce((most, value, k) => Math.max(most, Math.abs(value - state2[k]!)), 0);
      expect(worst).toBeGreaterThan(0);
      expect(worst).toBeLessThan(2e-4);
    });
    release([...caches, ...restored]);
    await f.close();
  });

  it('[B33] an encoding that cannot be believed ends the restore as a miss of its own reason', async () => {
    const f = await startStore({}, { stateCodec: 'int8' });
    const caches = [new ArraysCache(ARRAYS), new ArraysCache(ARRAYS)];
    step(caches, 16);
    recorder(f, 16).recorder.capture(caches, tokens, 16, true);
    await f.settled();
    const part = partOf(f, 16);
    const broken = part.layers.map((layer) => ({
      ...layer,
      elements: layer.elements.map((element) =>
        element !== null && 'encoding' in (element as object) ? { ...(element as object), encoding: { codec: 'int8', source: 'F16' } } : element,
      ),
    })) as LayerState[];
    let released = 0;
    const events = [{ ...part, layers: broken, release: () => released++ }];
    const attempt = new RestoreAttempt({
      lookup: () => null,
      start: () => ({ next: () => events.shift() ?? { type: 'done', tokenCount: 16, reason: null, detail: '' }, cancel: () => undefined }) as never,
      builder: () => new RestoreBuilder({ makeCaches: () => [new ArraysCache(ARRAYS), new ArraysCache(ARRAYS)] }),
      deadlineMs: 10_000,
    });
    const handles = mx.handleCount();
    attempt.begin();
    expect(attempt.poll(0)).toMatchObject({ caches: null, missReason: 'codec', tokenCount: 0 });
    expect([released, mx.handleCount()]).toEqual([1, handles]);
    release(caches);
    await f.close();
  });
});

/** The staged state at `count` as the store worker would hand it over. */
function partOf(f: StoreFixture, count: number) {
  const path = pathOf(f, 'r', count);
  expect(existsSync(path)).toBe(true);
  const bytes = PagedBytes.of(readFileSync(path));
  const image = verifyImage(bytes);
  if (!image.ok) throw new Error(image.detail);
  return {
    type: 'part' as const,
    part: 'state' as const,
    blockIndex: 0,
    start: 0,
    end: count,
    layers: layersFromImage(image, bytes)!,
    bytes: bytes.byteLength,
    release: () => undefined,
  };
}
