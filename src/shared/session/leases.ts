/**
 * Leases: an item's bytes that are still in MLX's buffers when it is handed over.
 *
 * The engine has waited for the arrays, names them as a lease (native/mlx/leases.cc) and writes its number into the item before it is
 * queued; place and bytes of the item are those of any other, counted once, given back by whoever ends it. Who needs the bytes (its
 * consumer, or the engine that reads the boundary back or closes) calls `fillLeased` first, which copies them into the item's pages, at
 * most 8 MiB under `bufferAccess` at a time, and then clears the item's word: that releases the arrays. The engine drops them at its next step
 * (engine-thread/boundary/lease-book.ts), also when the item has ended without being filled. Two threads may fill one item together.
 */
import { TidemarkError } from '../errors.ts';
import type { ItemRef } from './item-space.ts';
import { ITEM } from './item-table.ts';
import type { Session } from './session.ts';

export const LEASE_SLICE_BYTES = 8 * 1024 * 1024;
export const LEASE_LOCK_TIMEOUT_MS = 2_000;

/** What a thread needs to copy out of leases. */
export interface LeaseAccess {
  readonly bufferAccess: { acquire(timeoutMs: number, site: string): boolean; release(): void };
  /** Makes the copy callable: reads files the first time, so it is called before the lock is taken. @throws MLX_UNAVAILABLE */
  load(): void;
  /** Copies up to `most` bytes of what is left into `target`, the arena; how many are left then. @throws LEASE_GONE */
  copy(lease: number, target: Uint8Array, most: number): number;
}

/**
 * Puts the bytes of a leased item where they belong; at once for any other. The caller holds the item: it has taken or pinned it.
 *
 * @throws {TidemarkError} LEASE_GONE (details.reason 'worker') when the engine's thread has ended, LOCK_TIMEOUT (details.reason 'lock') when
 *   `bufferAccess` was not had in time, MLX_UNAVAILABLE
 */
export function fillLeased(session: Session, { item }: ItemRef): void {
  const { items, leases } = session;
  const lease = items.get(item, ITEM.lease);
  if (lease === 0) return;
  if (leases === null) throw gone('this thread has no access to leases');
  const arena = new Uint8Array(session.memory.arena);
  try {
    leases.load();
    while (copySlice(leases, lease, arena) > 0);
  } catch (error) {
    if (!(error instanceof TidemarkError) || error.code !== 'LEASE_GONE') throw error;
    // Somebody else has come to its end, and the engine has dropped it since.
    if (items.get(item, ITEM.lease) === 0) return;
    throw gone(error.message);
  }
  items.set(item, ITEM.lease, 0);
}

function copySlice({ bufferAccess, copy }: LeaseAccess, lease: number, arena: Uint8Array): number {
  if (!bufferAccess.acquire(LEASE_LOCK_TIMEOUT_MS, 'lease slice')) {
    throw new TidemarkError('LOCK_TIMEOUT', `bufferAccess was not had within ${LEASE_LOCK_TIMEOUT_MS} ms for a slice of a lease`, {
      details: { reason: 'lock' },
    });
  }
  try {
    return copy(lease, arena, LEASE_SLICE_BYTES);
  } finally {
    bufferAccess.release();
  }
}

function gone(why: string): TidemarkError {
  return new TidemarkError('LEASE_GONE', `The boundary's bytes are gone with the engine that held them: ${why}`, { details: { reason: 'worker' } });
}
