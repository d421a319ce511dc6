/**
 * The product's sync modules as explorable steps, with stand-ins for what is not under exploration: the thread table (one
 * word of life per thread), interned strings, the transition log.
 */
import { TidemarkError } from '../../../src/shared/errors.ts';
import { World } from './scheduler.ts';
import type { Mutation } from './transform.ts';
import { loadSteps } from './transform.ts';

/** Product code of locks and rings, in dependency order. */
export const SYNC_MODULES = [
  'shared/sync/waits',
  'shared/sync/lock-word',
  'shared/sync/lock',
  'shared/sync/mutex',
  'shared/sync/reentrant',
  'shared/sync/condition',
  'shared/doorbell',
  'shared/ring',
];

/** Whether this very thread is the owner: nobody else can make it so, or undo it. */
export const OWN = ['ownerOf', 'isHeldByMe'];

/** Generator versions of the product's classes; typed loosely, since every method became a generator. */
// biome-ignore lint/suspicious/noExplicitAny: the classes are made from text at run time
export type Steps = any;

export interface SyncOptions {
  /** Replaces FAIR_AFTER_MS of the lock word. Infinity: barging only, no timed sleep; 0: priority at once. */
  readonly fairAfterMs?: number;
  /** Replaces SLICE_MS. Infinity: a lost wake-up sleeps for ever instead of being healed by a slice. */
  readonly sliceMs?: number;
  readonly mutations?: readonly Mutation[];
}

export interface SyncWorld {
  readonly world: World;
  /** The exports of the explored modules. */
  readonly sync: Steps;
}

export function syncWorld(options: SyncOptions = {}): SyncWorld {
  const { fairAfterMs = 1, sliceMs = Number.POSITIVE_INFINITY, mutations = [] } = options;
  const world = new World();
  const constants: Mutation[] = [
    { path: 'shared/sync/lock-word', find: /const FAIR_AFTER_MS = 1;/, replace: `const FAIR_AFTER_MS = ${fairAfterMs};` },
    { path: 'shared/sync/waits', find: /const SLICE_MS = 50;/, replace: `const SLICE_MS = ${sliceMs};` },
    { path: 'shared/sync/condition', find: /const REACQUIRE_MS = 10_000;/, replace: 'const REACQUIRE_MS = Infinity;' },
  ];
  const modules = {
    'shared/sync/clock': { now: world.now },
    'shared/errors': { TidemarkError },
    'shared/sync/thread-table': { slotOf: (token: number) => token },
  };
  return { world, sync: loadSteps(SYNC_MODULES, { modules, whole: OWN }, world.operations, [...mutations, ...constants]) };
}

/** A thread's handle as the lock classes use it. Tokens are 1, 2, 3, … */
export function fakeThread(world: World, id: number, dead: ReadonlySet<number> = new Set()): Steps {
  const isDead = (token: number) => {
    world.observe(dead.has(token - 1) ? 5 : 6);
    return dead.has(token - 1);
  };
  return {
    slot: id,
    token: id + 1,
    mayBlock: true,
    strict: true,
    held: [],
    beginWait: () => undefined,
    endWait: () => undefined,
    log: () => undefined,
    table: {
      strings: { intern: () => 1, read: () => 'site' },
      nextLockId: () => 1,
      ms: () => 0,
      isDead: isDead,
      isGone: isDead,
      nameOf: (token: number) => `thread ${token - 1}`,
      countRankViolation: () => undefined,
    },
  };
}
