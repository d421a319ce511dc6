// Each op against the same thing written out in JavaScript (float64), on CPU in float32. What must not happen: an op bound to the wrong MLX
// function, or its arguments in the wrong order.
import { describe, expect, test } from 'vitest';
import * as mx from '../../src/engine-thread/mlx/ops.ts';

const s = mx.openEngineStream('cpu');

const tensor = (values: readonly number[], shape: readonly number[] = [values.length]): mx.Tensor =>
  mx.fromBytes(new Uint8Array(Float32Array.from(values).buffer), shape, 'float32');
const ints = (values: readonly number[], shape: readonly number[] = [values.length]): mx.Tensor => mx.fromInts(Int32Array.from(values), shape);

function numbers(t: mx.Tensor): number[] {
  const packed = mx.contiguous(t, s);
  mx.evaluate([packed]);
  return [...mx.toFloat32Array(packed)];
}

function expectClose(t: mx.Tensor, expected: readonly number[], shape?: readonly number[], tolerance = 2e-6): void {
  if (shape !== undefined) expect(mx.shapeOf(t)).toEqual(shape);
  const got = numbers(t);
  expect(got.length).toBe(expected.length);
  for (const [i, want] of expected.entries()) {
    if (Number.isNaN(want)) expect(got[i]).toBeNaN();
    else if (!Number.isFinite(want)) expect(got[i]).toBe(want);
    else expect(Math.abs(got[i]! - want), `element ${i}: ${got[i]} instead of ${want}`).toBeLessThanOrEqual(tolerance * Math.max(1, Math.abs(want)));
  }
}

const bool = (x: boolean): number => (x ? 1 : 0);
const A = [-2.5, -1, -0.25, 0.5, 1, 3.75];
const B = [2, -1, 0.5, 0.5, -3, 1.5];
const P = [0.1, 0.5, 1, 2, 3.5, 10];

// Abramowitz and Stegun 7.1.26 is too coarse; a series is exact enough for these arguments.
function erf(x: number): number {
  let term = x;
  let sum = x;
  for (let n = 1; n < 200; n++) {
    term *= -(x * x) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}
const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

describe('one operand', () => {
  test.each<[string, (a: mx.Tensor, s: mx.Stream) => mx.Tensor, (x: number) => number, number[]]>([
    ['neg', mx.neg, (x) => -x, A],
    ['exp', mx.exp, Math.exp, A],
    ['expm1', mx.expm1, Math.expm1, A],
    ['log', mx.log, Math.log, P],
    ['log1p', mx.log1p, Math.log1p, P],
    ['log2', mx.log2, Math.log2, P],
    ['sigmoid', mx.sigmoid, sigmoid, A],
    ['silu', mx.silu, (x) => x * sigmoid(x), A],
    ['softplus', mx.softplus, (x) => Math.log1p(Math.exp(x)), A],
    ['square', mx.square, (x) => x * x, A],
    ['sqrt', mx.sqrt, Math.sqrt, P],
    ['rsqrt', mx.rsqrt, (x) => 1 / Math.sqrt(x), P],
    ['reciprocal', mx.reciprocal, (x) => 1 / x, P],
    ['tanh', mx.tanh, Math.tanh, A],
    ['erf', mx.erf, erf, [-2, -0.5, 0, 0.5, 2]],
    ['abs', mx.abs, Math.abs, A],
    ['sign', mx.sign, Math.sign, A],
    ['cos', mx.cos, Math.cos, A],
    ['sin', mx.sin, Math.sin, A],
    ['floor', mx.floor, Math.floor, A],
    ['ceil', mx.ceil, Math.ceil, A],
    ['round', mx.round, (x) => x, [-2, 1, 3]],
    ['logicalNot', mx.logicalNot, (x) => bool(x === 0), [0, 1, 2]],
    ['isfinite', mx.isfinite, (x) => bool(Number.isFinite(x)), [0, Infinity, Number.NaN]],
    ['isnan', mx.isnan, (x) => bool(Number.isNaN(x)), [0, Infinity, Number.NaN]],
  ])('%s', (_, op, plain, values) => expectClose(op(tensor(values), s), values.map(plain)));
});

const mod = (x: number, y: number): number => x - Math.floor(x / y) * y;
const binary: [string, (a: mx.Operand, b: mx.Operand, s: mx.Stream) => mx.Tensor, (x: number, y: number) => number, number[]][] = [
  ['add', mx.add, (x, y) => x + y, A],
  ['sub', mx.sub, (x, y) => x - y, A],
  ['mul', mx.mul, (x, y) => x * y, A],
  ['div', mx.div, (x, y) => x / y, A],
  ['floorDivide', mx.floorDivide, (x, y) => Math.floor(x / y), A],
  ['remainder', mx.remainder, mod, A],
  ['power', mx.power, (x, y) => x ** y, P],
  ['logaddexp', mx.logaddexp, (x, y) => Math.log(Math.exp(x) + Math.exp(y)), A],
  ['maximum', mx.maximum, Math.max, A],
  ['minimum', mx.minimum, Math.min, A],
  ['equal', mx.equal, (x, y) => bool(x === y), A],
  ['notEqual', mx.notEqual, (x, y) => bool(x !== y), A],
  ['less', mx.less, (x, y) => bool(x < y), A],
  ['lessEqual', mx.lessEqual, (x, y) => bool(x <= y), A],
  ['greater', mx.greater, (x, y) => bool(x > y), A],
  ['greaterEqual', mx.greaterEqual, (x, y) => bool(x >= y), A],
  ['logicalAnd', mx.logicalAnd, (x, y) => bool(x !== 0 && y !== 0), A],
  ['logicalOr', mx.logicalOr, (x, y) => bool(x !== 0 || y !== 0), A],
];

describe('two operands', () => {
  test.each(binary)('%s', (_, op, plain, values) => {
    expectClose(
      op(tensor(values), tensor(B), s),
      values.map((x, i) => plain(x, B[i]!)),
      undefined,
      1e-5,
    );
    // A number on either side is a scalar of the other's dtype.
    expectClose(
      op(tensor(values), 0.5, s),
      values.map((x) => plain(x, 0.5)),
      undefined,
      1e-5,
    );
    expectClose(
      op(2, tensor(B), s),
      B.map((y) => plain(2, y)),
      undefined,
      1e-5,
    );
  });

  test('a number keeps the dtype of the other operand', () => {
    const dtypeWith = (dtype: mx.Dtype, value: number): mx.Dtype => mx.dtypeOf(mx.mul(mx.zeros([2], dtype, s), value, s));
    for (const dtype of ['float32', 'bfloat16', 'float16', 'int32', 'uint8', 'int64'] as const) expect(dtypeWith(dtype, 2)).toBe(dtype);
    expect(dtypeWith('bfloat16', 0.1)).toBe('bfloat16');
    expect(dtypeWith('int32', 0.5)).toBe('float32');
    expect(dtypeWith('bool', 2)).toBe('int32');
  });

  test('bit operations, where and clip', () => {
    const x = ints([1, 6, 12]);
    expectClose(mx.bitwiseAnd(x, 4, s), [0, 4, 4]);
    expectClose(mx.bitwiseOr(x, 1, s), [1, 7, 13]);
    expectClose(mx.leftShift(x, 2, s), [4, 24, 48]);
    expectClose(mx.rightShift(x, 1, s), [0, 3, 6]);
    expectClose(mx.where(mx.greater(tensor(A), 0, s), tensor(A), -Infinity, s), [-Infinity, -Infinity, -Infinity, 0.5, 1, 3.75]);
    expectClose(mx.where(mx.greater(tensor(A), 0, s), 1, tensor(B), s), [2, -1, 0.5, 1, 1, 1]);
    expectClose(mx.clip(tensor(A), -1, 1, s), [-1, -1, -0.25, 0.5, 1, 1]);
    expectClose(mx.clip(tensor(A), null, 0, s), [-2.5, -1, -0.25, 0, 0, 0]);
  });
});

describe('reductions and sorting', () => {
  const M = [3, -1, 2, 5, 0, 4]; // 2 x 3
  const m = (): mx.Tensor => tensor(M, [2, 3]);
  const lse = (...x: number[]): number => Math.log(x.reduce((sum, v) => sum + Math.exp(v), 0));

  test('over one axis, over all, keeping axes', () => {
    expectClose(mx.sum(m(), 1, false, s), [4, 9], [2]);
    expectClose(mx.sum(m(), 0, true, s), [8, -1, 6], [1, 3]);
    expectClose(mx.sum(m(), null, false, s), [13], []);
    expectClose(mx.sum(m(), [0, 1], true, s), [13], [1, 1]);
    expectClose(mx.prod(m(), 1, false, s), [-6, 0]);
    expectClose(mx.max(m(), 1, false, s), [3, 5]);
    expectClose(mx.min(m(), 0, false, s), [3, -1, 2]);
    expectClose(mx.mean(m(), 1, false, s), [4 / 3, 3]);
    expectClose(mx.variance(m(), 1, false, s), [26 / 9, 14 / 3]);
    expectClose(mx.logsumexp(m(), 1, false, s), [lse(3, -1, 2), lse(5, 0, 4)]);
    expectClose(mx.all(m(), 1, false, s), [1, 0]);
    expectClose(mx.any(mx.sub(m(), m(), s), 1, false, s), [0, 0]);
    expectClose(mx.argmax(m(), 1, false, s), [0, 0]);
    expectClose(mx.argmin(m(), 1, true, s), [1, 1], [2, 1]);
    expectClose(mx.argmax(m(), null, false, s), [3], []);
  });

  test('softmax and running sums', () => {
    const e = [Math.exp(3), Math.exp(-1), Math.exp(2)];
    const total = e[0]! + e[1]! + e[2]!;
    expectClose(
      mx.softmax(tensor([3, -1, 2]), -1, true, s),
      e.map((v) => v / total),
    );
    expectClose(mx.cumsum(m(), 1, {}, s), [3, 2, 4, 5, 5, 9]);
    expectClose(mx.cumsum(m(), 1, { reverse: true }, s), [4, 1, 2, 9, 4, 4]);
    expectClose(mx.cumsum(m(), 1, { inclusive: false }, s), [0, 3, 2, 0, 5, 5]);
    expectClose(mx.cumprod(m(), 1, {}, s), [3, -3, -6, 5, 0, 0]);
  });

  test('sort, argsort, partitions, topk', () => {
    expectClose(mx.sort(m(), 1, s), [-1, 2, 3, 0, 4, 5]);
    expectClose(mx.argsort(m(), 1, s), [1, 2, 0, 1, 2, 0]);
    expect(numbers(mx.partition(m(), 1, 1, s))[1]).toBe(2);
    expect(numbers(mx.argpartition(m(), 1, 1, s))[1]).toBe(2);
    expect(
      numbers(mx.topk(tensor(M), 2, 0, s))
        .slice()
        .sort(),
    ).toEqual([4, 5]);
  });
});

describe('shape and indexing', () => {
  const six = (): mx.Tensor => mx.arange(0, 6, 1, 'float32', s);
  const grid = (): mx.Tensor => mx.reshape(six(), [2, 3], s);

  test('rearranging', () => {
    expectClose(mx.transpose(grid(), null, s), [0, 3, 1, 4, 2, 5], [3, 2]);
    expectClose(mx.transpose(mx.reshape(six(), [1, 2, 3], s), [2, 0, 1], s), [0, 3, 1, 4, 2, 5], [3, 1, 2]);
    expectClose(mx.swapaxes(grid(), 0, 1, s), [0, 3, 1, 4, 2, 5], [3, 2]);
    expectClose(mx.moveaxis(mx.reshape(six(), [1, 2, 3], s), 2, 0, s), [0, 3, 1, 4, 2, 5], [3, 1, 2]);
    expectClose(mx.expandDims(six(), [0, 2], s), [0, 1, 2, 3, 4, 5], [1, 6, 1]);
    expectClose(mx.squeeze(mx.expandDims(six(), 0, s), null, s), [0, 1, 2, 3, 4, 5], [6]);
    expectClose(mx.squeeze(mx.expandDims(six(), 0, s), 0, s), [0, 1, 2, 3, 4, 5], [6]);
    expectClose(mx.flatten(mx.reshape(six(), [1, 2, 3], s), 1, 2, s), [0, 1, 2, 3, 4, 5], [1, 6]);
    expectClose(mx.unflatten(six(), 0, [3, 2], s), [0, 1, 2, 3, 4, 5], [3, 2]);
    expectClose(mx.broadcastTo(tensor([1, 2]), [2, 2], s), [1, 2, 1, 2]);
    expectClose(mx.concatenate([tensor([1]), tensor([2, 3])], 0, s), [1, 2, 3]);
    expectClose(mx.stack([tensor([1, 2]), tensor([3, 4])], 1, s), [1, 3, 2, 4], [2, 2]);
    expect(mx.split(six(), 3, 0, s).map(numbers)).toEqual([
      [0, 1],
      [2, 3],
      [4, 5],
    ]);
    expect(mx.split(six(), [1, 4], 0, s).map(numbers)).toEqual([[0], [1, 2, 3], [4, 5]]);
    expectClose(mx.repeat(tensor([1, 2]), 2, 0, s), [1, 1, 2, 2]);
    expectClose(mx.tile(tensor([1, 2]), [2], s), [1, 2, 1, 2]);
    expectClose(
      mx.pad(
        tensor([1, 2], [1, 2]),
        [
          [1, 0],
          [0, 2],
        ],
        7,
        s,
      ),
      [7, 7, 7, 7, 1, 2, 7, 7],
      [2, 4],
    );
    expectClose(mx.tril(mx.full([2, 2], 1, 'float32', s), 0, s), [1, 0, 1, 1]);
    expectClose(mx.triu(mx.full([2, 2], 1, 'float32', s), 1, s), [0, 1, 0, 0]);
    expectClose(mx.copy(grid(), s), [0, 1, 2, 3, 4, 5], [2, 3]);
    const [tied] = mx.depends([grid()], [six()], s);
    expectClose(tied!, [0, 1, 2, 3, 4, 5], [2, 3]);
  });

  test('slices and updates', () => {
    expectClose(mx.slice(grid(), [0, 1], [2, 3], s), [1, 2, 4, 5], [2, 2]);
    expectClose(mx.slice(six(), [0], [6], [2], s), [0, 2, 4]);
    expectClose(mx.sliceUpdate(grid(), tensor([9, 8], [1, 2]), [1, 1], [2, 3], s), [0, 1, 2, 3, 9, 8]);
    expectClose(mx.sliceUpdate(six(), tensor([9, 8, 7]), [0], [6], [2], s), [9, 1, 8, 3, 7, 5]);
    expectClose(mx.sliceAt(six(), ints([2]), [0], [3], s), [2, 3, 4]);
    expectClose(mx.sliceUpdateAt(six(), tensor([9, 8]), ints([3]), [0], s), [0, 1, 2, 9, 8, 5]);
  });

  test('gathering and scattering', () => {
    expectClose(mx.take(grid(), ints([2, 0]), 1, s), [2, 0, 5, 3], [2, 2]);
    expectClose(mx.takeAlongAxis(grid(), ints([2, 0], [2, 1]), 1, s), [2, 3], [2, 1]);
    expectClose(mx.putAlongAxis(grid(), ints([2, 0], [2, 1]), tensor([9, 8], [2, 1]), 1, s), [0, 1, 9, 8, 4, 5]);
    expectClose(mx.putAlongAxis(grid(), ints([2, 0], [2, 1]), -1, 1, s), [0, 1, -1, -1, 4, 5]);
    expectClose(mx.scatterAddAxis(grid(), ints([0, 0], [2, 1]), tensor([10, 20], [2, 1]), 1, s), [10, 1, 2, 23, 4, 5]);
  });

  test('dtypes', () => {
    expect(mx.dtypeOf(mx.astype(six(), 'bfloat16', s))).toBe('bfloat16');
    expectClose(mx.view(tensor([1, -2]), 'uint32', s), [0x3f800000, 0xc0000000]);
    expectClose(mx.full([2], 3, 'int32', s), [3, 3], [2]);
    expectClose(mx.scalar(2.5, 'float32'), [2.5], []);
    expect(mx.nbytes(mx.zeros([3, 5], 'bfloat16', s))).toBe(30);
  });
});

describe('linear algebra', () => {
  const a = (): mx.Tensor => tensor([1, 2, 3, 4], [2, 2]);
  const b = (): mx.Tensor => tensor([5, 6, 7, 8], [2, 2]);

  test('products', () => {
    expectClose(mx.matmul(a(), b(), s), [19, 22, 43, 50]);
    expectClose(mx.addmm(tensor([1, 1, 1, 1], [2, 2]), a(), b(), 2, 10, s), [48, 54, 96, 110]);
    expectClose(mx.einsum('ij,kj->ik', [a(), b()], s), [17, 23, 39, 53]);
    expectClose(mx.outer(tensor([1, 2]), tensor([3, 4]), s), [3, 4, 6, 8]);
    expectClose(mx.triInv(tensor([2, 0, 1, 4], [2, 2]), false, s), [0.5, 0, -0.125, 0.25]);
    // A matrix picked per row.
    expectClose(mx.gatherMm(tensor([1, 1], [1, 1, 2]), mx.stack([a(), b()], 0, s), null, ints([1]), false, s), [12, 14], [1, 1, 2]);
  });

  test('conv1d is a correlation over [N, L, C]', () => {
    const input = tensor([1, 2, 3, 4, 5, 6, 7, 8], [1, 4, 2]);
    const depthwise = tensor([1, 10, 100, 2, 20, 200], [2, 3, 1]);
    expectClose(mx.conv1d(input, depthwise, 1, 0, 1, 2, s), [1 + 30 + 500, 4 + 80 + 1200, 3 + 50 + 700, 8 + 120 + 1600]);
  });

  test('quantized products equal the dequantized ones', () => {
    const w = mx.reshape(mx.sin(mx.arange(0, 8 * 64, 1, 'float32', s), s), [8, 64], s);
    const x = mx.reshape(mx.cos(mx.arange(0, 3 * 64, 1, 'float32', s), s), [3, 64], s);
    for (const bits of [4, 8]) {
      const q = { groupSize: 32, bits };
      const [codes, scales, biases] = mx.quantize(w, q, s) as [mx.Tensor, mx.Tensor, mx.Tensor];
      const restored = mx.dequantize(codes, scales, biases, q, null, s);
      const coarse = numbers(restored);
      for (const [i, v] of numbers(w).entries()) expect(Math.abs(v - coarse[i]!)).toBeLessThan(bits === 4 ? 2 / 15 : 2 / 255);
      const plain = numbers(mx.matmul(x, mx.transpose(restored, null, s), s));
      expectClose(mx.quantizedMatmul(x, codes, scales, biases, q, s), plain, [3, 8], 1e-5);
      const three = (t: mx.Tensor): mx.Tensor => mx.stack([mx.zeros(mx.shapeOf(t), mx.dtypeOf(t), s), t], 0, s);
      const gathered = mx.gatherQmm(mx.expandDims(x, 0, s), three(codes), three(scales), three(biases), null, ints([1]), q, s);
      expectClose(gathered, plain, [1, 3, 8], 1e-5);
    }
  });
});

describe('fused kernels', () => {
  test('rmsNorm and layerNorm', () => {
    const rms = Math.sqrt((1 + 4 + 9) / 3 + 1e-5);
    expectClose(mx.rmsNorm(tensor([1, 2, 3], [1, 3]), tensor([1, 2, 1]), 1e-5, s), [1 / rms, 4 / rms, 3 / rms], undefined, 1e-5);
    expectClose(mx.rmsNorm(tensor([1, 2, 3], [1, 3]), null, 1e-5, s), [1 / rms, 2 / rms, 3 / rms], undefined, 1e-5);
    const dev = Math.sqrt(2 / 3 + 1e-5);
    expectClose(mx.layerNorm(tensor([1, 2, 3], [1, 3]), null, tensor([0, 1, 0]), 1e-5, s), [-1 / dev, 1, 1 / dev], undefined, 1e-5);
  });

  test('rope: number and tensor offsets, half rotation and pairs', () => {
    const x = [1, 2, 3, 4];
    const rotate = (position: number, pairs: [number, number][]): number[] => {
      const out = x.slice();
      for (const [k, [i, j]] of pairs.entries()) {
        const angle = position * 10000 ** (-k / 2);
        out[i] = x[i]! * Math.cos(angle) - x[j]! * Math.sin(angle);
        out[j] = x[i]! * Math.sin(angle) + x[j]! * Math.cos(angle);
      }
      return out;
    };
    const q = tensor(x, [1, 1, 1, 4]);
    const halves: [number, number][] = [
      [0, 2],
      [1, 3],
    ];
    const pairs: [number, number][] = [
      [0, 1],
      [2, 3],
    ];
    expectClose(mx.rope(q, 4, false, 10000, 1, 7, null, s), rotate(7, halves), undefined, 1e-5);
    expectClose(mx.rope(q, 4, false, 10000, 1, ints([7]), null, s), rotate(7, halves), undefined, 1e-5);
    expectClose(mx.rope(q, 4, true, 10000, 1, 7, null, s), rotate(7, pairs), undefined, 1e-5);
    expectClose(mx.rope(q, 4, false, null, 1, 7, tensor([1, 100]), s), rotate(7, halves), undefined, 1e-5);
  });

  test('sdpa: masks and sinks', () => {
    const q = tensor([1, 0, 0, 1], [1, 1, 2, 2]);
    const k = tensor([1, 0, 0, 1], [1, 1, 2, 2]);
    const v = tensor([1, 2, 3, 4], [1, 1, 2, 2]);
    const e = Math.E;
    const mixed = (w0: number, w1: number): number[] => [(w0 * 1 + w1 * 3) / (w0 + w1), (w0 * 2 + w1 * 4) / (w0 + w1)];
    expectClose(mx.sdpa(q, k, v, 1, {}, s), [...mixed(e, 1), ...mixed(1, e)]);
    expectClose(mx.sdpa(q, k, v, 1, { mask: 'causal' }, s), [1, 2, ...mixed(1, e)]);
    expectClose(mx.sdpa(q, k, v, 1, { mask: tensor([0, -Infinity, 0, 0], [2, 2]) }, s), [1, 2, ...mixed(1, e)]);
    const sink = Math.exp(0.5);
    expectClose(mx.sdpa(q, k, v, 1, { mask: 'causal', sinks: tensor([0.5]) }, s), [
      e / (e + sink),
      (2 * e) / (e + sink),
      (1 + 3 * e) / (1 + e + sink),
      (2 + 4 * e) / (1 + e + sink),
    ]);
  });

  test('gatedDeltaUpdate is the delta rule, and T steps equal T single steps', () => {
    const [T, D] = [5, 32];
    const wave = (n: number, shape: number[], phase: number): mx.Tensor =>
      mx.reshape(mx.mul(mx.sin(mx.add(mx.arange(0, n, 1, 'float32', s), phase, s), s), 0.3, s), shape, s);
    const q = wave(T * D, [1, T, 1, D], 1);
    const k = wave(T * D, [1, T, 1, D], 2);
    const v = wave(T * D, [1, T, 1, D], 3);
    const gates = mx.full([1, T, 1], 0.9, 'float32', s);
    const beta = mx.full([1, T, 1], 0.5, 'float32', s);
    const state = mx.zeros([1, 1, D, D], 'float32', s);
    const [out, end] = mx.gatedDeltaUpdate(q, k, v, gates, beta, state, null, s);
    const [Q, K, V] = [numbers(q), numbers(k), numbers(v)];
    const S = Array.from({ length: D }, () => new Array<number>(D).fill(0));
    const expected: number[] = [];
    for (let t = 0; t < T; t++) {
      for (const [i, row] of S.entries()) {
        for (let j = 0; j < D; j++) row[j]! *= 0.9;
        const seen = row.reduce((sum, w, j) => sum + w * K[t * D + j]!, 0);
        for (let j = 0; j < D; j++) row[j]! += 0.5 * (V[t * D + i]! - seen) * K[t * D + j]!;
      }
      for (const row of S) expected.push(row.reduce((sum, w, j) => sum + w * Q[t * D + j]!, 0));
    }
    expectClose(out, expected, [1, T, 1, D], 1e-5);
    expectClose(end, S.flat(), [1, 1, D, D], 1e-5);
  });
});

describe('random numbers', () => {
  test('depend on the key alone', () => {
    const draw = (seed: number): number[] => numbers(mx.random.uniform(0, 1, [4], 'float32', mx.random.key(seed), s));
    expect(draw(1)).toEqual(draw(1));
    expect(draw(1)).not.toEqual(draw(2));
    for (const x of draw(3)) expect(x).toBeGreaterThanOrEqual(0);
    expect(mx.shapeOf(mx.random.split(mx.random.key(1), 3, s))).toEqual([3, 2]);
    expect(mx.shapeOf(mx.random.normal([2, 3], 'float32', mx.random.key(1), s))).toEqual([2, 3]);
    expectClose(mx.random.categorical(tensor([-Infinity, 0, -Infinity]), -1, mx.random.key(5), s), [1]);
  });
});

test('nothing here ran on another stream than the engine’s', () => {
  expect(mx.foreignStreamOps()).toBe(0);
});
