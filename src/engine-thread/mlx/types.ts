/**
 * The vocabulary of the native layer. Tensors and streams are integers at run time and distinct types at compile time: neither can be passed
 * for the other, nor for a plain number, and a call that forgets its stream does not type-check.
 */

declare const tensorBrand: unique symbol;
declare const streamBrand: unique symbol;

/** A handle into the calling thread's table of arrays. Freed by its scope or by `release`, never by the garbage collector. */
export type Tensor = number & { readonly [tensorBrand]: true; readonly isHandle: true };

/** A stream of the calling thread. Work on it runs in order. */
export type Stream = number & { readonly [streamBrand]: true };

/** A tensor, or a number that takes the dtype of the other operand (as Python scalars do in MLX). */
export type Operand = Tensor | number;

export type Dtype =
  | 'bool'
  | 'uint8'
  | 'uint16'
  | 'uint32'
  | 'uint64'
  | 'int8'
  | 'int16'
  | 'int32'
  | 'int64'
  | 'float16'
  | 'bfloat16'
  | 'float32'
  | 'float64'
  | 'complex64';

export type Device = 'cpu' | 'gpu';
export type Shape = readonly number[];

/** One axis, several, or `null` for all of them. */
export type Axes = number | readonly number[] | null;

/**
 * `unscheduled`: only described. `evaluated`: scheduled, maybe still being computed. `available`: its bytes can be read.
 * `poisoned`: its stream failed; every use throws TENSOR_POISONED.
 */
export type TensorStatus = 'unscheduled' | 'evaluated' | 'available' | 'poisoned';

/** How a matrix is quantized. `mode` is MLX's ('affine' unless said otherwise). */
export interface Quantization {
  groupSize: number;
  bits: number;
  mode?: string;
}

const DTYPE_BYTES: Record<Dtype, number> = {
  bool: 1,
  uint8: 1,
  uint16: 2,
  uint32: 4,
  uint64: 8,
  int8: 1,
  int16: 2,
  int32: 4,
  int64: 8,
  float16: 2,
  bfloat16: 2,
  float32: 4,
  float64: 8,
  complex64: 8,
};

/** Bytes of one element. */
export function dtypeBytes(dtype: Dtype): number {
  return DTYPE_BYTES[dtype];
}
