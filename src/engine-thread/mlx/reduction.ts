import { mlx } from './binding.ts';
import type { Axes, Stream, Tensor } from './types.ts';

const native = mlx();

type ReductionName = 'sum' | 'prod' | 'max' | 'min' | 'mean' | 'variance' | 'logsumexp' | 'all' | 'any';

const list = (axes: Axes): readonly number[] | null => (typeof axes === 'number' ? [axes] : axes);

function reduction(name: ReductionName): (a: Tensor, axes: Axes, keepdims: boolean, s: Stream) => Tensor {
  const op = native[name];
  return (a, axes, keepdims, s) => op(a, list(axes), keepdims, s);
}

/** Over one axis, several, or all of them (`null`). */
export const sum = reduction('sum');
export const prod = reduction('prod');
export const max = reduction('max');
export const min = reduction('min');
export const mean = reduction('mean');
/** Population variance (divides by n). */
export const variance = reduction('variance');
export const logsumexp = reduction('logsumexp');
export const all = reduction('all');
export const any = reduction('any');

/** Index of the extreme along an axis, or in the flattened tensor (`null`); uint32. */
export const { argmax, argmin } = native;

/** `precise` computes in float32 whatever the dtype. */
export function softmax(a: Tensor, axes: number | readonly number[], precise: boolean, s: Stream): Tensor {
  return native.softmax(a, typeof axes === 'number' ? [axes] : axes, precise, s);
}

export interface ScanOptions {
  reverse?: boolean;
  /** Whether the element itself is part of its sum (default true). */
  inclusive?: boolean;
}

export function cumsum(a: Tensor, axis: number, options: ScanOptions, s: Stream): Tensor {
  return native.cumsum(a, axis, options.reverse ?? false, options.inclusive ?? true, s);
}

export function cumprod(a: Tensor, axis: number, options: ScanOptions, s: Stream): Tensor {
  return native.cumprod(a, axis, options.reverse ?? false, options.inclusive ?? true, s);
}

/** Ascending. `argpartition`: the elements before `kth` are not greater, in no order. `topk`: the k largest, in no order. */
export const { sort, argsort, partition, argpartition, topk } = native;
