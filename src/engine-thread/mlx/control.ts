import { mlx } from './binding.ts';
import type { Tensor } from './types.ts';

const native = mlx();

/**
 * `evaluate` computes and waits. `asyncEvaluate` schedules and returns, but blocks when much is scheduled already; `wait` ends when that tensor is
 * computed. After an error the tensors named, and every tensor of their stream that was not known to be computed, throw TENSOR_POISONED.
 *
 * The blocking calls are functions of our own, named waitFor…, because a CPU profile shows a thread inside native code as self time of its caller.
 */
function waitForStream(tensors: readonly Tensor[]): void {
  native.evaluate(tensors);
}

function waitForTensor(t: Tensor): void {
  native.wait(t);
}

export { waitForStream as evaluate, waitForTensor as wait };

export const { asyncEvaluate, status } = native;

/** Shape, dtype and size are known before evaluation. `bufferAddress` tells whether two tensors share a buffer (0 before evaluation). */
export const { shapeOf, dtypeOf, nbytes, bufferAddress } = native;
