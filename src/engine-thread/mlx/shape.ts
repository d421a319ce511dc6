import { mlx } from './binding.ts';
import type { Axes, Shape, Stream, Tensor } from './types.ts';

const native = mlx();

/** `unflatten` splits one axis into a shape; `depends` makes inputs wait for other tensors. */
export const { reshape, unflatten, swapaxes, moveaxis, broadcastTo, concatenate, stack, repeat, tile, tril, triu, depends } = native;

/**
 * `contiguous` shares the buffer when the tensor is row-contiguous and fills most of it, else copies; `copy` makes another tensor of the same
 * bytes; `view` reinterprets bytes as another dtype.
 */
export const { contiguous, copy, astype, view } = native;

/** Merges the axes from `startAxis` to `endAxis` (inclusive). */
export const { flatten } = native;

/** Without axes (`null`): in reverse order. */
export const { transpose } = native;

export function expandDims(a: Tensor, axes: number | readonly number[], s: Stream): Tensor {
  return native.expandDims(a, typeof axes === 'number' ? [axes] : axes, s);
}

/** `null`: every axis of length 1. */
export function squeeze(a: Tensor, axes: Axes, s: Stream): Tensor {
  return native.squeeze(a, typeof axes === 'number' ? [axes] : axes, s);
}

/** Into equal parts (a number), or at the given indices. */
export function split(a: Tensor, at: number | readonly number[], axis: number, s: Stream): Tensor[] {
  return typeof at === 'number' ? native.splitParts(a, at, axis, s) : native.splitAt(a, at, axis, s);
}

/** `width[i]` is the [before, after] padding of axis i. */
export function pad(a: Tensor, width: readonly (readonly [number, number])[], value: number, s: Stream): Tensor {
  return native.pad(
    a,
    width.map((_, axis) => axis),
    width.map(([low]) => low),
    width.map(([, high]) => high),
    value,
    s,
  );
}

/** The elements from `start` to `stop` of each axis; `strides` (default 1) may follow. */
export function slice(a: Tensor, start: Shape, stop: Shape, s: Stream): Tensor;
export function slice(a: Tensor, start: Shape, stop: Shape, strides: Shape, s: Stream): Tensor;
export function slice(a: Tensor, start: Shape, stop: Shape, strides: Shape | Stream, s?: Stream): Tensor {
  return s === undefined ? native.slice(a, start, stop, null, strides as Stream) : native.slice(a, start, stop, strides as Shape, s);
}

/**
 * `a` with that part replaced. Done in place, without copying `a`, when no other handle or lazy use of `a` is alive at evaluation: release the
 * old handle before.
 */
export function sliceUpdate(a: Tensor, update: Tensor, start: Shape, stop: Shape, s: Stream): Tensor;
export function sliceUpdate(a: Tensor, update: Tensor, start: Shape, stop: Shape, strides: Shape, s: Stream): Tensor;
export function sliceUpdate(a: Tensor, update: Tensor, start: Shape, stop: Shape, strides: Shape | Stream, s?: Stream): Tensor {
  return s === undefined
    ? native.sliceUpdate(a, update, start, stop, null, strides as Stream)
    : native.sliceUpdate(a, update, start, stop, strides as Shape, s);
}

/** As `slice` and `sliceUpdate`, with start indices that are a tensor. `take` and the like index along one axis. */
export const { sliceAt, sliceUpdateAt, take, takeAlongAxis, putAlongAxis, scatterAddAxis } = native;
