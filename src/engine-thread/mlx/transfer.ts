import { mlx } from './binding.ts';

const native = mlx();

/**
 * Into tensors. `fromBytes` copies and the tensor is available at once; `loadTensor` reads a file's bytes straight into the tensor (errors:
 * MODEL_NOT_FOUND, MODEL_FILE_TRUNCATED, MODEL_FILE_UNREADABLE); `scalar` has no axes.
 */
export const { zeros, full, scalar, arange, fromInts, fromBytes, loadTensor } = native;

/**
 * Out of tensors; none of these evaluates. `readBytes` copies `target.length` bytes from byte `from` of a row-contiguous, available tensor, also
 * into a view of a SharedArrayBuffer. `itemNumber` waits for a tensor in flight.
 */
export const { readBytes, toFloat32Array, toInt32Array, itemNumber } = native;

/** Page-locks memory that tensors are copied to or from, where that makes copies faster (CUDA). False where it changes nothing. */
export const { registerHostMemory, unregisterHostMemory } = native;
