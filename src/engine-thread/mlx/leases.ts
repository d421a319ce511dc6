/** The engine's side of leases: opened over arrays of this thread, dropped by it. See native/mlx/leases.cc. */
import type { NativeLeases } from '../boundary/lease-book.ts';
import { mlx } from './binding.ts';

const native = mlx();

export const nativeLeases: NativeLeases = {
  open: (pieces, target) => native.leaseOpen(new Uint8Array(pieces.buffer, pieces.byteOffset, pieces.byteLength), target),
  drop: (lease) => {
    native.leaseDrop(lease);
  },
};
