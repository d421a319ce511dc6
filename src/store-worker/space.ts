/**
 * How much may be stored: the one ledger of physical bytes under a cache folder, and the limit that holds right now.
 *
 * With a configured limit L, F bytes free on the disk and T bytes tracked (everything under the folder), the effective
 * limit is min(L, 99 % of (T + F)): the last hundredth of what the disk could give us stays free. Free space is probed at
 * most every 30 s; what we write and remove in between moves T and F against each other and leaves their sum alone.
 */
import { statfsSync } from 'node:fs';

export interface SpaceOptions {
  readonly maxBytes: number;
  /** Free bytes on the disk of the cache folder; throws when it cannot tell. */
  readonly freeBytes: () => number;
  /** Bytes under the cache folder outside the block folders. */
  readonly otherBytes: () => number;
  readonly now: () => number;
  readonly warn: (code: 'CACHE_IO' | 'CACHE_FULL', message: string, details: Record<string, unknown>) => void;
  /** How long a probe's answer holds. */
  readonly probeTtlMs: number;
}

/** Bytes that an ordinary user may still write on the disk of `path`. */
export function freeBytesOf(path: string): number {
  const stat = statfsSync(path);
  return stat.bavail * stat.bsize;
}

export class Space {
  /** Physical bytes of block files in use. Moved by the store only, in one place each. */
  blockBytes = 0;
  /** Physical bytes in block folders that are not in use: other formats, strangers. */
  foreignBytes = 0;
  #otherBytes = 0;
  #free: number | null = null;
  #probedAt = Number.NEGATIVE_INFINITY;
  #trackedAtProbe = 0;
  #warned = false;
  #maxBytes: number;
  readonly #options: SpaceOptions;

  constructor(options: SpaceOptions) {
    this.#options = options;
    this.#maxBytes = options.maxBytes;
  }

  /** Another engine on this folder asked for another limit. What is too much now goes with the next saves. */
  setMaxBytes(maxBytes: number): void {
    this.#maxBytes = maxBytes;
  }

  /** Everything under the cache folder. */
  get tracked(): number {
    return this.blockBytes + this.foreignBytes + this.#otherBytes;
  }

  /** After ENOSPC the last answer is wrong: ask again. */
  invalidate(): void {
    this.#probedAt = Number.NEGATIVE_INFINITY;
  }

  #probe(): void {
    const now = this.#options.now();
    if (now - this.#probedAt < this.#options.probeTtlMs) return;
    this.#probedAt = now;
    this.#otherBytes = this.#options.otherBytes();
    this.#trackedAtProbe = this.tracked;
    try {
      this.#free = this.#options.freeBytes();
    } catch (error) {
      this.#free = null;
      this.#warnOnce('CACHE_IO', 'free disk space cannot be read; only the configured limit holds', { error: String(error) });
      return;
    }
    if (this.#free < this.#maxBytes / 10)
      this.#warnOnce('CACHE_FULL', `disk pressure: ${this.#free} bytes free, less than a tenth of the cache limit of ${this.#maxBytes}`, { free: this.#free });
    else this.#warned = false;
  }

  #warnOnce(code: 'CACHE_IO' | 'CACHE_FULL', message: string, details: Record<string, unknown>): void {
    if (!this.#warned) this.#options.warn(code, message, details);
    this.#warned = true;
  }

  /** The limit that holds now, in bytes. */
  effectiveLimit(): number {
    this.#probe();
    if (this.#free === null) return this.#maxBytes;
    return Math.min(this.#maxBytes, Math.floor((this.#trackedAtProbe + this.#free) * 0.99));
  }

  /** How many bytes must go before `bytes` more fit; 0 when they fit. */
  excess(bytes: number): number {
    const limit = this.effectiveLimit();
    return Math.max(0, this.tracked + bytes - limit);
  }

  /** Share of the effective limit in use, never above 1. */
  utilization(): number {
    const limit = this.effectiveLimit();
    return limit <= 0 ? 1 : Math.min(1, this.tracked / limit);
  }
}
