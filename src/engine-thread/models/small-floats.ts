/** Rounding to the values of small floating-point types, block by block, as models trained with such activations expect it. */
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';

/** Largest value of e4m3, its smallest normal one, and the distance of those below. */
const E4M3_MAX = 448;
const E4M3_NORMAL = 2 ** -6;

/** Nearest e4m3 value, ties to even. x is float32. */
export function roundE4m3(x: Tensor, s: Stream): Tensor {
  const magnitude = mx.minimum(mx.abs(x, s), E4M3_MAX, s);
  const exponent = mx.floor(mx.log2(mx.maximum(magnitude, E4M3_NORMAL, s), s), s);
  const step = mx.power(2, mx.sub(exponent, 3, s), s);
  return mx.mul(mx.mul(mx.round(mx.div(magnitude, step, s), s), step, s), mx.sign(x, s), s);
}

/** What each threshold adds to the rounded magnitude of an e2m1 value, and whether the threshold itself counts. */
const E2M1: readonly (readonly [threshold: number, inclusive: boolean, adds: number])[] = [
  [0.25, false, 0.5],
  [0.75, true, 0.5],
  [1.25, false, 0.5],
  [1.75, true, 0.5],
  [2.5, false, 1],
  [3.5, true, 1],
  [5, false, 2],
];
const E2M1_MAX = 6;

function roundE2m1(x: Tensor, s: Stream): Tensor {
  const magnitude = mx.abs(x, s);
  const parts = E2M1.map(([threshold, inclusive, adds]) => {
    const above = inclusive ? mx.greaterEqual(magnitude, threshold, s) : mx.greater(magnitude, threshold, s);
    return mx.mul(mx.astype(above, 'float32', s), adds, s);
  });
  return mx.mul(
    parts.reduce((sum, part) => mx.add(sum, part, s)),
    mx.sign(x, s),
    s,
  );
}

/** The last axis in blocks: [..., blocks, block], float32, with the largest magnitude of each. */
function blocksOf(x: Tensor, block: number, floor: number, s: Stream): { blocks: Tensor; largest: Tensor } {
  const shape = mx.shapeOf(x);
  const blocks = mx.reshape(mx.astype(x, 'float32', s), [...shape.slice(0, -1), shape.at(-1)! / block, block], s);
  return { blocks, largest: mx.maximum(mx.max(mx.abs(blocks, s), -1, true, s), floor, s) };
}

const powerOfTwoAbove = (t: Tensor, s: Stream) => mx.power(2, mx.ceil(mx.log2(t, s), s), s);

/** Through e4m3 and back, with a power of two for each block. Unchanged when blocks do not divide the width. */
export function throughFp8(x: Tensor, block: number, s: Stream): Tensor {
  const shape = mx.shapeOf(x);
  if (shape.at(-1)! % block !== 0) return x;
  const { blocks, largest } = blocksOf(x, block, 1e-4, s);
  const scale = powerOfTwoAbove(mx.div(largest, E4M3_MAX, s), s);
  const rounded = mx.mul(roundE4m3(mx.clip(mx.div(blocks, scale, s), -E4M3_MAX, E4M3_MAX, s), s), scale, s);
  return mx.astype(mx.reshape(rounded, shape, s), mx.dtypeOf(x), s);
}

/** Through e2m1 and back; a block's scale is a power of two, or itself an e4m3 value. */
export function throughFp4(x: Tensor, block: number, scales: 'power' | 'e4m3', s: Stream): Tensor {
  const shape = mx.shapeOf(x);
  if (shape.at(-1)! % block !== 0) return x;
  const { blocks, largest } = blocksOf(x, block, E2M1_MAX * (scales === 'e4m3' ? 2 ** -9 : 2 ** -126), s);
  const ratio = mx.div(largest, E2M1_MAX, s);
  const scale = scales === 'e4m3' ? roundE4m3(ratio, s) : powerOfTwoAbove(ratio, s);
  const rounded = mx.mul(roundE2m1(mx.clip(mx.div(blocks, scale, s), -E2M1_MAX, E2M1_MAX, s), s), scale, s);
  return mx.astype(mx.reshape(rounded, shape, s), mx.dtypeOf(x), s);
}
