/**
 * The one call that the snapshot writer and the store worker make into MLX's addon: a copy out of a lease. It touches no array of theirs; the addon is
 * loaded when the first lease is copied.
 */
import { bufferAccessLock, type ProcessShared } from '../../shared/process-shared.ts';
import type { LeaseAccess } from '../../shared/session/leases.ts';
import type { ThreadHandle } from '../../shared/sync/thread-table.ts';
import { mlx } from './binding.ts';

/** How the calling thread copies out of leases. */
export function leaseAccess(shared: ProcessShared, self: ThreadHandle): LeaseAccess {
  return {
    bufferAccess: bufferAccessLock(shared, self),
    load: () => void mlx(),
    copy: (lease, target, most) => mlx().leaseCopy(lease, target, most),
  };
}
