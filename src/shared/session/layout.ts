/**
 * Where everything lies in a session's control memory. One place, computed from the limits alone, so that every thread that
 * has the memory and the limits agrees.
 */
import { DescriptorRing } from '../ring.ts';
import { LockTable, type TableSpec } from '../sync/lock-table.ts';
import { SESSION_LOCKS } from '../sync/ranks.ts';
import { ItemTable } from './item-table.ts';
import { Ledger } from './ledger.ts';
import { MAX_RESERVATIONS, type SessionLimits } from './limits.ts';
import { PagePool } from './page-pool.ts';
import { PENDING_FIGURES } from './pending.ts';
import { Registry } from './registry.ts';

/** The session's locks; `pendingCond` belongs to `pending`. */
export const LOCK_SPECS: readonly TableSpec[] = SESSION_LOCKS.map((spec) => (spec.name === 'pending' ? { ...spec, conditions: ['pendingCond'] } : spec));

/** Words of the session itself. */
export const WORD = {
  magic: 0,
  /** `SESSION_STATES` */
  state: 1,
  /** Records the registry holds that only wait for the removal of their file. */
  condemned: 2,
  /** Token of the thread that serves as writer; 0 while there is none. */
  writer: 3,
  /** Bumped with each file written, failed or dropped: whoever set a unit aside for a staged file looks again. */
  staged: 4,
  /** Tensors stored as float32 because their codec does not fit them. */
  codecFallbacks: 5,
  /** Loads refused because an encoding could not be believed. */
  codecRefused: 6,
} as const;

export const SESSION_MAGIC = 0x544d5331; // 'TMS1'
export const SESSION_STATES = ['open', 'closed', 'failed'] as const;
export type SessionState = (typeof SESSION_STATES)[number];

export interface SessionLayout {
  readonly words: number;
  readonly locks: number;
  readonly ledger: number;
  readonly items: number;
  readonly registry: number;
  readonly pages: number;
  readonly writerRing: number;
  readonly unitRing: number;
  /** In 64-bit words, behind the 32-bit ones. */
  readonly figures: number;
  readonly bytes: number;
  /** Items: the writer's queue, then one express slot, then units. */
  readonly expressItem: number;
  readonly firstUnit: number;
  readonly itemCount: number;
  readonly pageCount: number;
  readonly writerRingCapacity: number;
  readonly unitRingCapacity: number;
}

export function sessionLayout(limits: SessionLimits): SessionLayout {
  const itemCount = limits.queueCapacity + 1 + limits.unitCapacity;
  const capPages = Math.ceil(limits.pendingMaxBytes / limits.pageBytes);
  // The cap, a partly filled last page for each item and reservation, the express item (as large as the cap, outside of it),
  // and one page that the writer may be touching.
  const pageCount = 2 * capPages + itemCount + MAX_RESERVATIONS + 1;
  // An item has at most one descriptor under way, so a ring with a place for each never refuses.
  const writerRingCapacity = powerOfTwo(limits.queueCapacity + 1);
  const unitRingCapacity = powerOfTwo(limits.unitCapacity);
  let at = 16;
  const place = (words: number) => {
    const start = at;
    at += Math.ceil(words / 16) * 16;
    return start;
  };
  const locks = place(LockTable.wordsFor(LOCK_SPECS));
  const ledger = place(Ledger.WORDS);
  const items = place(ItemTable.wordsFor(itemCount));
  const registry = place(Registry.wordsFor(limits.registryCapacity));
  const pages = place(PagePool.wordsFor(pageCount));
  const writerRing = place(DescriptorRing.wordsFor(writerRingCapacity));
  const unitRing = place(DescriptorRing.wordsFor(unitRingCapacity));
  return {
    words: at,
    locks,
    ledger,
    items,
    registry,
    pages,
    writerRing,
    unitRing,
    figures: at / 2,
    bytes: at * 4 + PENDING_FIGURES * 8,
    expressItem: limits.queueCapacity,
    firstUnit: limits.queueCapacity + 1,
    itemCount,
    pageCount,
    writerRingCapacity,
    unitRingCapacity,
  };
}

function powerOfTwo(atLeast: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, atLeast)));
}
