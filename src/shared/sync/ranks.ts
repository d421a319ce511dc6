/**
 * The order of locks. A thread acquires only locks of a higher rank than every lock it holds, so no cycle of locks can form.
 *
 * | rank | lock | guards |
 * |---|---|---|
 * | 1 | writerBusy | one item of the writer, from dequeue to its end |
 * | 2 | pending (+ pendingCond) | pending entries, pending bytes, reservations |
 * | 3 | registry | which (request, boundary) has a file |
 * | 4 | cancelled | cancellation state of items in flight |
 * | leaf | bufferAccess | MLX buffer bytes against cache clears; taken under writerBusy at most, nothing is taken under it |
 */
export const LEAF = 100;

export const RANKS = { writerBusy: 1, pending: 2, registry: 3, cancelled: 4, bufferAccess: LEAF } as const;

export interface LockSpec {
  readonly name: string;
  readonly rank: number;
  /** The highest rank that may be held while this lock is acquired. Default: any lower rank. */
  readonly maxUnder?: number;
  /**
   * What acquiring finds when the owner died: 'abandon' (default) throws LOCK_OWNER_DIED for ever, because the data it guards
   * may be half changed; 'takeover' gives the lock to the next who asks, for locks that guard no data of ours.
   */
  readonly onOwnerDeath?: 'abandon' | 'takeover';
}

/** The locks of one session, in table order. */
export const SESSION_LOCKS = [
  { name: 'writerBusy', rank: RANKS.writerBusy },
  { name: 'pending', rank: RANKS.pending, conditions: ['pendingCond'] },
  { name: 'registry', rank: RANKS.registry },
  { name: 'cancelled', rank: RANKS.cancelled },
] as const satisfies readonly (LockSpec & { conditions?: readonly string[] })[];

/** Process-wide, reentrant, leaf. Its owner's cleanup drains streams and leases before the death word is set, so it may be taken over. */
export const BUFFER_ACCESS: LockSpec = { name: 'bufferAccess', rank: LEAF, maxUnder: RANKS.writerBusy, onOwnerDeath: 'takeover' };
