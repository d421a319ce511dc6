import { mlx } from './binding.ts';

const native = mlx();

/**
 * `evaluate` computes and waits. `asyncEvaluate` schedules and returns, but blocks when much is scheduled already; `wait` ends when that tensor is
 * computed. After an error the tensors named, and every tensor of their stream that was not known to be computed, throw TENSOR_POISONED.
 */
export const { evaluate, asyncEvaluate, wait, status } = native;

/** Shape, dtype and size are known before evaluation. `bufferAddress` tells whether two tensors share a buffer (0 before evaluation). */
export const { shapeOf, dtypeOf, nbytes, bufferAddress } = native;
