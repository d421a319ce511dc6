/**
 * Limits of MLX's allocator: how much it may use, how much freed memory it keeps, and how much a Mac keeps resident (wired).
 *
 * They hold for the whole process, so the engine that set one last has it. An engine that ends puts back what it found, unless
 * somebody else has set something since. Engine thread only.
 */
import type { ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import { TidemarkError } from '../shared/errors.ts';
import { setCacheLimit, setMemoryLimit, setWiredLimit } from './mlx/memory.ts';

export type MemoryLimits = ResolvedEngineOptions['memory'];

/** Each sets a limit and returns the former one. */
export interface LimitSetters {
  setMemoryLimit(bytes: number): number;
  setCacheLimit(bytes: number): number;
  setWiredLimit(bytes: number): number;
}

export interface AppliedLimits {
  /** What was asked for and does nothing here, for people, or null. */
  readonly warning: string | null;
  restore(): void;
}

/**
 * The wired limit for a device: what was asked for, else what Metal recommends as working set, so that weights and caches are not
 * paged out between requests. Null on devices that know no such limit. Metal takes no more than it recommends.
 */
export function wiredLimitFor(asked: number | null, info: Readonly<Record<string, string | number>>): number | null {
  const most = info.max_recommended_working_set_size;
  if (typeof most !== 'number') return null;
  if (asked !== null && asked > most) {
    throw new TidemarkError(
      'INVALID_ARGUMENT',
      `options.wiredLimitBytes must be at most ${most}, which this GPU recommends as working set, but is ${asked}. Give less, or leave it out.`,
      { details: { field: 'options.wiredLimitBytes', expected: `at most ${most}`, received: String(asked) } },
    );
  }
  return asked ?? most;
}

export function applyMemoryLimits(
  limits: MemoryLimits,
  info: Readonly<Record<string, string | number>>,
  setters: LimitSetters = { setMemoryLimit, setCacheLimit, setWiredLimit },
): AppliedLimits {
  // May refuse: before anything is set.
  const wired = wiredLimitFor(limits.wired, info);
  const undo: (() => void)[] = [];
  const apply = (set: (bytes: number) => number, bytes: number | null): void => {
    if (bytes === null) return;
    const former = set(bytes);
    undo.push(() => {
      const found = set(former);
      if (found !== bytes) set(found);
    });
  };
  apply(setters.setMemoryLimit, limits.memory);
  apply(setters.setCacheLimit, limits.cache);
  apply(setters.setWiredLimit, wired);
  return {
    warning: limits.wired !== null && wired === null ? 'options.wiredLimitBytes does nothing on this device: only Metal keeps memory wired.' : null,
    restore() {
      for (const put of undo.splice(0).reverse()) put();
    },
  };
}
