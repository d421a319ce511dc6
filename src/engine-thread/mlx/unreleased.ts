/**
 * Memory that was freed and that the system still charges to the process.
 *
 * A clear of the allocator's cache gives buffers back at once; the kernel may go on counting them for 0.1 to 0.3 s, on some systems for
 * over a second. Whoever compares the process's footprint with a limit must not take these bytes for use by requests. They are what the
 * footprint lies above what it should have fallen to, and no more than was freed within the window.
 */

export const UNRELEASED_WINDOW_MS = 10_000;

export interface MemoryReading {
  /** Milliseconds of a steady clock. */
  readonly now: number;
  /** What the system charges to the process. */
  readonly footprint: number;
  /** What MLX's allocator holds: arrays and cache. */
  readonly allocator: number;
}

interface Freed {
  readonly before: MemoryReading;
  readonly bytes: number;
}

export class UnreleasedWindow {
  #freed: Freed[] = [];

  /** A clear gave back `bytes`; `before` was read right before it. */
  freed(before: MemoryReading, bytes: number): void {
    this.#forgetOld(before.now);
    if (bytes > 0) this.#freed.push({ before, bytes });
  }

  get isEmpty(): boolean {
    return this.#freed.length === 0;
  }

  estimate(reading: MemoryReading): number {
    this.#forgetOld(reading.now);
    const first = this.#freed[0];
    if (first === undefined) return 0;
    const expected = first.before.footprint + reading.allocator - first.before.allocator;
    const freed = this.#freed.reduce((sum, { bytes }) => sum + bytes, 0);
    return Math.min(freed, Math.max(0, reading.footprint - expected));
  }

  #forgetOld(now: number): void {
    while (this.#freed.length > 0 && now - this.#freed[0]!.before.now > UNRELEASED_WINDOW_MS) this.#freed.shift();
  }
}
