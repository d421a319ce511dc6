/** Copies out of many tensors with one call into native code. A piece's id is the tensor's handle. */
import type { BulkReader } from '../../shared/layer-state.ts';
import { mlx } from './binding.ts';
import type { Tensor } from './types.ts';

const native = mlx();

export const tensorReader: BulkReader = {
  readMany(pieces, target) {
    if (native.readMany !== undefined) return native.readMany(new Uint8Array(pieces.buffer, pieces.byteOffset, pieces.byteLength), target);
    // An addon from before `readMany`, until the next install builds it again.
    for (let i = 0; i < pieces.length; i += 4) {
      const [t, from, size, at] = pieces.subarray(i, i + 4) as unknown as [Tensor, number, number, number];
      native.readBytes(t, from, target.subarray(at, at + size));
    }
  },
};
