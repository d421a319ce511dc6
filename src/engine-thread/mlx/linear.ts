import { mlx } from './binding.ts';
import type { Dtype, Quantization, Stream, Tensor } from './types.ts';

const native = mlx();

/** `addmm` is beta * c + alpha * (a @ b). `conv1d` takes input [N, L, C] and weight [O, K, C / groups]. `triInv` runs on CPU streams only. */
export const { matmul, addmm, einsum, outer, conv1d, triInv } = native;

/** x @ w^T with w quantized along its last axis. On CPU it never uses BLAS: for more than a few rows dequantize and multiply instead. */
export function quantizedMatmul(x: Tensor, w: Tensor, scales: Tensor, biases: Tensor | null, q: Quantization & { transpose?: boolean }, s: Stream): Tensor {
  return native.quantizedMatmul(x, w, scales, biases, q.transpose ?? true, q.groupSize, q.bits, q.mode ?? 'affine', s);
}

/** [codes, scales, biases] (no biases in the modes that have none). CPU and GPU may differ in single codes: never re-quantize stored weights. */
export function quantize(w: Tensor, q: Quantization, s: Stream): Tensor[] {
  return native.quantize(w, q.groupSize, q.bits, q.mode ?? 'affine', s);
}

/** `dtype` null: the dtype of the scales. */
export function dequantize(w: Tensor, scales: Tensor, biases: Tensor | null, q: Quantization, dtype: Dtype | null, s: Stream): Tensor {
  return native.dequantize(w, scales, biases, q.groupSize, q.bits, q.mode ?? 'affine', dtype, s);
}

/** Matrices picked by index out of batches, for mixtures of experts. `sorted`: the indices are in order. */
export const { gatherMm } = native;

export function gatherQmm(
  x: Tensor,
  w: Tensor,
  scales: Tensor,
  biases: Tensor | null,
  lhs: Tensor | null,
  rhs: Tensor | null,
  q: Quantization & { transpose?: boolean; sorted?: boolean },
  s: Stream,
): Tensor {
  return native.gatherQmm(x, w, scales, biases, lhs, rhs, q.transpose ?? true, q.groupSize, q.bits, q.mode ?? 'affine', q.sorted ?? false, s);
}
