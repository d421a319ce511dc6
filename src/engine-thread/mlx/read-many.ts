/** Copies out of many tensors with one call into native code. A piece's id is the tensor's handle. */
import type { BulkReader } from '../../shared/layer-state.ts';
import { mlx } from './binding.ts';

const native = mlx();

export const tensorReader: BulkReader = {
  readMany: (pieces, target) => native.readMany(new Uint8Array(pieces.buffer, pieces.byteOffset, pieces.byteLength), target),
};
