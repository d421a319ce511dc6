// Bytes that go through a tensor come back as they were: all 65,536 patterns of bfloat16 (NaN payloads too), through shared memory, in slices,
// and from a file.
import { truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import * as mx from '../../src/engine-thread/mlx/ops.ts';
import { tensorReader } from '../../src/engine-thread/mlx/read-many.ts';
import { tempDir } from '../helpers/temp.ts';

const s = mx.openEngineStream('cpu');

function patterns(shared: boolean): Uint8Array {
  const buffer = shared ? new SharedArrayBuffer(131_072) : new ArrayBuffer(131_072);
  const words = new Uint16Array(buffer);
  for (let i = 0; i < words.length; i++) words[i] = i;
  return new Uint8Array(buffer);
}

function code(fn: () => unknown): string {
  try {
    fn();
  } catch (error) {
    return (error as { code?: string }).code ?? String(error);
  }
  return 'no error';
}

describe('every bfloat16 pattern', () => {
  test('shared memory → tensor → shared memory', () => {
    const source = patterns(true);
    const t = mx.fromBytes(source, [256, 256], 'bfloat16');
    expect(mx.status(t)).toBe('available');
    const target = new Uint8Array(new SharedArrayBuffer(131_072 + 24), 24);
    mx.readBytes(t, 0, target);
    expect(Buffer.compare(source, target)).toBe(0);
  });

  test('the tensor has its own copy', () => {
    const source = patterns(false);
    const t = mx.fromBytes(source, [65_536], 'bfloat16');
    source.fill(0);
    const target = new Uint8Array(131_072);
    mx.readBytes(t, 0, target);
    expect(Buffer.compare(target, patterns(false))).toBe(0);
  });

  test('many pieces with one call, into shared memory', () => {
    const tensors = [mx.fromBytes(patterns(true), [256, 256], 'bfloat16'), mx.fromBytes(patterns(false).reverse(), [131_072], 'uint8')];
    const target = new Uint8Array(new SharedArrayBuffer(300_000));
    const pieces = Float64Array.of(tensors[0]!, 1000, 70_000, 7, tensors[1]!, 0, 131_072, 100_001, tensors[0]!, 131_071, 1, 299_999);
    tensorReader.readMany(pieces, target);
    expect(Buffer.compare(target.slice(7, 70_007), patterns(false).slice(1000, 71_000))).toBe(0);
    expect(Buffer.compare(target.slice(100_001, 231_073), patterns(false).reverse())).toBe(0);
    expect(target[299_999]).toBe(255);
    expect(target.slice(231_073, 299_999).every((byte) => byte === 0)).toBe(true);
  });

  test('with one bad piece nothing is copied', () => {
    const t = mx.fromBytes(patterns(true), [256, 256], 'bfloat16');
    const lazy = mx.add(t, 1, s);
    const target = new Uint8Array(1000);
    for (const bad of [
      [t, 131_000, 100, 0],
      [t, 0, 100, 901],
      [t, -1, 1, 0],
      [t, 0, 0.5, 0],
      [lazy, 0, 1, 0],
    ]) {
      expect(code(() => tensorReader.readMany(Float64Array.from([t, 2, 500, 0, ...bad]), target))).toBe('INVALID_ARGUMENT');
      expect(target.every((byte) => byte === 0)).toBe(true);
    }
  });

  test('through copy, contiguous, slice updates and a view as other types', () => {
    const t = mx.fromBytes(patterns(true), [256, 256], 'bfloat16');
    const views = [
      mx.copy(t, s),
      mx.contiguous(mx.transpose(mx.contiguous(mx.transpose(t, null, s), s), null, s), s),
      mx.sliceUpdate(mx.zeros([256, 256], 'bfloat16', s), t, [0, 0], [256, 256], s),
      mx.view(mx.view(t, 'uint16', s), 'bfloat16', s),
      mx.concatenate([mx.slice(t, [0, 0], [100, 256], s), mx.slice(t, [100, 0], [256, 256], s)], 0, s),
    ];
    mx.evaluate(views);
    for (const view of views) {
      const target = new Uint8Array(131_072);
      mx.readBytes(view, 0, target);
      expect(Buffer.compare(target, patterns(false))).toBe(0);
    }
  });
});

test('slices of any length and place', () => {
  const source = patterns(false);
  const t = mx.fromBytes(source, [65_536], 'bfloat16');
  for (const [from, length] of [
    [0, 1],
    [1, 7],
    [131_071, 1],
    [4_097, 60_000],
    [131_072, 0],
  ] as const) {
    const target = new Uint8Array(length);
    mx.readBytes(t, from, target);
    expect(Buffer.compare(target, source.subarray(from, from + length))).toBe(0);
  }
  // A slice has an offset into its parent's buffer.
  const part = mx.slice(t, [1000], [2000], s);
  mx.evaluate([part]);
  const target = new Uint8Array(2000);
  mx.readBytes(part, 0, target);
  expect(Buffer.compare(target, source.subarray(2000, 4000))).toBe(0);
});

test('an empty tensor, a scalar, every dtype', () => {
  for (const dtype of ['bool', 'uint8', 'int16', 'float16', 'bfloat16', 'int32', 'uint32', 'float32', 'int64', 'uint64', 'float64', 'complex64'] as const) {
    for (const count of [0, 1, 3]) {
      const t = mx.zeros([count], dtype, s);
      mx.evaluate([t]);
      const bytes = Uint8Array.from({ length: mx.nbytes(t) }, (_, i) => (dtype === 'bool' ? i % 2 : i * 7));
      const back = new Uint8Array(bytes.length);
      mx.readBytes(mx.fromBytes(bytes, [count], dtype), 0, back);
      expect([...back]).toEqual([...bytes]);
    }
  }
  expect(mx.itemNumber(mx.fromBytes(Uint8Array.of(0x80, 0x3f), [], 'bfloat16'))).toBe(1);
});

test('reading does not evaluate, wait, reorder or overrun', () => {
  const lazy = mx.zeros([8], 'uint8', s);
  expect(code(() => mx.readBytes(lazy, 0, new Uint8Array(8)))).toBe('INVALID_ARGUMENT');
  expect(mx.status(lazy)).toBe('unscheduled');
  const turned = mx.transpose(mx.reshape(mx.arange(0, 6, 1, 'float32', s), [2, 3], s), null, s);
  mx.evaluate([turned]);
  expect(code(() => mx.readBytes(turned, 0, new Uint8Array(24)))).toBe('INVALID_ARGUMENT');
  expect([...mx.toFloat32Array(turned)]).toEqual([0, 3, 1, 4, 2, 5]);
  const eight = mx.fromBytes(new Uint8Array(8), [8], 'uint8');
  for (const [from, length] of [
    [0, 9],
    [8, 1],
    [-1, 1],
    [0.5, 1],
    [2 ** 53, 1],
  ] as const) {
    expect(code(() => mx.readBytes(eight, from, new Uint8Array(length)))).toBe('INVALID_ARGUMENT');
  }
  expect(code(() => mx.fromBytes(new Uint8Array(7), [2], 'float32'))).toBe('INVALID_ARGUMENT');
  expect(code(() => mx.fromBytes(new Uint8Array(8), [-2, -1], 'float32'))).toBe('INVALID_ARGUMENT');
  expect(code(() => mx.fromInts(new Int32Array(3), [2]))).toBe('INVALID_ARGUMENT');
});

test('numbers out of each dtype', () => {
  const t = mx.fromInts(Int32Array.of(0, 1, 2), [3]);
  for (const dtype of ['bool', 'uint8', 'int8', 'uint16', 'int16', 'uint32', 'int64', 'uint64', 'float16', 'bfloat16', 'float64'] as const) {
    const cast = mx.astype(t, dtype, s);
    mx.evaluate([cast]);
    expect([...mx.toFloat32Array(cast)]).toEqual(dtype === 'bool' ? [0, 1, 1] : [0, 1, 2]);
    expect([...mx.toInt32Array(cast)]).toEqual(dtype === 'bool' ? [0, 1, 1] : [0, 1, 2]);
  }
});

describe('tensors from a file', () => {
  test('the bytes of the range', () => {
    const path = join(tempDir('native'), 'weights.bin');
    writeFileSync(path, patterns(false));
    const t = mx.loadTensor(path, 2000, 600, [3, 100], 'bfloat16');
    const target = new Uint8Array(600);
    mx.readBytes(t, 0, target);
    expect(Buffer.compare(target, patterns(false).subarray(2000, 2600))).toBe(0);
    expect(mx.shapeOf(mx.loadTensor(path, 131_072, 0, [0], 'float32'))).toEqual([0]);
  });

  test('a missing, short, unreadable or misdescribed file is an error that names it', () => {
    const dir = tempDir('native');
    const path = join(dir, 'weights.bin');
    writeFileSync(path, patterns(false));
    truncateSync(path, 1000);
    expect(code(() => mx.loadTensor(path, 900, 200, [50], 'float32'))).toBe('MODEL_FILE_TRUNCATED');
    expect(() => mx.loadTensor(path, 900, 200, [50], 'float32')).toThrow(path);
    expect(code(() => mx.loadTensor(join(dir, 'none'), 0, 4, [1], 'float32'))).toBe('MODEL_NOT_FOUND');
    expect(code(() => mx.loadTensor(dir, 0, 4, [1], 'float32'))).toBe('MODEL_FILE_UNREADABLE');
    expect(code(() => mx.loadTensor(path, 0, 8, [1], 'float32'))).toBe('MODEL_TENSOR_SHAPE');
  });
});
