/**
 * Whether blocks can be written right now. A failing disk is told once, by one event with a code, until it is well again;
 * meanwhile units fail at once, and the disk is tried with one unit after each back-off.
 */
import type { ErrorCode } from '../shared/errors.ts';
import type { StoreEvent } from '../shared/events.ts';
import { errnoOf } from '../shared/files.ts';

export interface BackOff {
  readonly firstMs: number;
  readonly maxMs: number;
}

export const DEFAULT_BACK_OFF: BackOff = { firstMs: 500, maxMs: 30_000 };

/** What a failed write means to the user, by errno; also by SQLite's code, whose writes are part of a unit. */
export function codeOf(errno: string): ErrorCode {
  if (['ENOSPC', 'EDQUOT', 'EFBIG', 'SQLITE_FULL'].includes(errno)) return 'CACHE_FULL';
  if (['EROFS', 'EACCES', 'EPERM'].includes(errno) || errno.startsWith('SQLITE_READONLY')) return 'CACHE_READ_ONLY';
  if (['ENOENT', 'ENOTDIR', 'ELOOP'].includes(errno)) return 'CACHE_DIR_UNUSABLE';
  return 'CACHE_IO';
}

const ADVICE: Partial<Record<ErrorCode, string>> = {
  CACHE_FULL: 'free some space or raise maxBytes; answers go on uncached',
  CACHE_READ_ONLY: 'make the cache folder writable; what is stored is still used',
  CACHE_DIR_UNUSABLE: 'the cache folder is gone; answers go on uncached until it can be made again',
  CACHE_IO: 'the disk reports errors; answers go on uncached',
};

export class Persistence {
  readonly #emit: (event: StoreEvent) => void;
  readonly #now: () => number;
  readonly #backOff: BackOff;
  #failure: { errno: string; code: ErrorCode; message: string } | null = null;
  #retryAt = 0;
  #pause = 0;

  readonly #what: string;

  /** `what` cannot be stored, in messages. */
  constructor(emit: (event: StoreEvent) => void, now: () => number, backOff: BackOff = DEFAULT_BACK_OFF, what = 'blocks') {
    this.#what = what;
    this.#emit = emit;
    this.#now = now;
    this.#backOff = backOff;
  }

  /** What failed last, until a write succeeds. */
  get failure(): { readonly errno: string; readonly code: ErrorCode; readonly message: string } | null {
    return this.#failure;
  }

  /** False while a unit should fail without touching the disk. */
  get mayTry(): boolean {
    return this.#failure === null || this.#now() >= this.#retryAt;
  }

  failed(error: unknown): { errno: string; message: string } {
    const errno = errnoOf(error);
    const message = error instanceof Error ? error.message : String(error);
    const code = codeOf(errno);
    this.#pause = this.#failure === null ? this.#backOff.firstMs : Math.min(this.#pause * 2, this.#backOff.maxMs);
    this.#retryAt = this.#now() + this.#pause;
    if (this.#failure === null)
      this.#emit({ type: 'degraded', code, message: `${this.#what} cannot be stored (${errno}): ${ADVICE[code] ?? ''}`, details: { errno, error: message } });
    // One event per outage: the code that was told is the one that recovers, whatever fails meanwhile.
    this.#failure = { errno, code: this.#failure?.code ?? code, message };
    return { errno, message };
  }

  succeeded(): void {
    if (this.#failure === null) return;
    this.#emit({ type: 'recovered', code: this.#failure.code, message: `${this.#what} are stored again` });
    this.#failure = null;
  }
}
