/**
 * The numbers of a session. Every one can be injected, so that tests of limits run in milliseconds.
 */
import { TidemarkError } from '../errors.ts';

export type OverflowPolicy = 'write-through' | 'inline' | 'drop';

export interface SessionLimits {
  /** Bytes that may wait for the disk; one larger item is admitted when none are held. */
  pendingMaxBytes: number;
  /** State items that may wait for the writer. */
  queueCapacity: number;
  /** Block images that may wait for the store worker. */
  unitCapacity: number;
  /** Boundaries that may have a staged file, or be about to get one, at the same time. */
  registryCapacity: number;
  /** What `save` does when the cap stays reached for `reserveWaitMs`, or the queue is full. */
  overflow: OverflowPolicy;
  /** Longest wait of `save` for pending bytes. */
  reserveWaitMs: number;
  /** Longest write-through or inline write, `writerBusy` included. */
  inlineWriteLimitMs: number;
  /** How much longer `save` waits once the writer has begun to publish its file. */
  publishGraceMs: number;
  /** Longest wait of `cleanupRequest` and `cleanupAll` for `writerBusy`. */
  cleanupRequestWaitMs: number;
  cleanupAllWaitMs: number;
  /** Longest wait of `takeStagedFile`. */
  takeWaitMs: number;
  /** Longest wait for `pending`, `registry` or `cancelled`; they are held for microseconds. */
  lockWaitMs: number;
  pageBytes: number;
}

export const DEFAULT_LIMITS: Readonly<SessionLimits> = {
  pendingMaxBytes: 512 * 1024 * 1024,
  queueCapacity: 128,
  unitCapacity: 64,
  registryCapacity: 4096,
  overflow: 'write-through',
  reserveWaitMs: 2000,
  inlineWriteLimitMs: 2000,
  publishGraceMs: 100,
  cleanupRequestWaitMs: 2000,
  cleanupAllWaitMs: 5000,
  takeWaitMs: 30_000,
  lockWaitMs: 2000,
  pageBytes: 1024 * 1024,
};

/** Reservations that may be held at the same time; each may leave one page of the arena partly used. */
export const MAX_RESERVATIONS = 64;

/** Defaults filled in, every number checked. */
export function resolveLimits(given: Partial<SessionLimits> = {}): SessionLimits {
  const limits = { ...DEFAULT_LIMITS, ...given };
  const atLeast = (name: keyof SessionLimits, least: number) => {
    const value = limits[name];
    if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < least)
      throw new TidemarkError('INVALID_ARGUMENT', `${name} must be an integer of at least ${least}, got ${String(value)}`);
  };
  for (const name of ['pendingMaxBytes', 'queueCapacity', 'unitCapacity', 'registryCapacity'] as const) atLeast(name, 1);
  for (const name of ['reserveWaitMs', 'inlineWriteLimitMs', 'publishGraceMs', 'cleanupRequestWaitMs', 'cleanupAllWaitMs', 'takeWaitMs', 'lockWaitMs'] as const)
    atLeast(name, 0);
  atLeast('pageBytes', 4096);
  if (!['write-through', 'inline', 'drop'].includes(limits.overflow))
    throw new TidemarkError('INVALID_ARGUMENT', `overflow must be 'write-through', 'inline' or 'drop', got '${String(limits.overflow)}'`);
  return limits;
}
