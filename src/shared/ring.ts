/**
 * A bounded queue of descriptors (four words each) in shared memory, from one producer to one consumer.
 *
 * HEAD is written by the consumer only, TAIL by the producer only; both count for ever and wrap. The producer writes the
 * cell and then publishes TAIL; the consumer reads TAIL, then the cell, and frees it by publishing HEAD. A thread that dies
 * at any instruction leaves a valid ring: what it had not published does not exist.
 *
 * "One" is at a time: several producers take turns under a lock of their own (in a session: `pending`), because the release
 * of that lock orders their writes.
 */
import type { Doorbell } from './doorbell.ts';

export type Descriptor = readonly [number, number, number, number];

const HEAD = 0;
const TAIL = 1;
const CELLS = 4;
const CELL_WORDS = 4;

export class DescriptorRing {
  readonly capacity: number;
  readonly #words: Int32Array;
  readonly #at: number;
  readonly #bell: Doorbell | null;

  static wordsFor(capacity: number): number {
    return CELLS + capacity * CELL_WORDS;
  }

  /** `words` holds `wordsFor(capacity)` zeroed words from `at` on. `bell` belongs to the consumer; only a producer needs it. */
  constructor(words: Int32Array, at: number, capacity: number, bell: Doorbell | null = null) {
    // A power of two, so that cell numbers stay in step when the counters wrap.
    if (!Number.isInteger(capacity) || capacity < 1 || (capacity & (capacity - 1)) !== 0)
      throw new RangeError(`ring capacity must be a power of two, got ${capacity}`);
    this.capacity = capacity;
    this.#words = words;
    this.#at = at;
    this.#bell = bell;
  }

  /** False when the ring is full. Rings the consumer's bell. */
  push(a: number, b = 0, c = 0, d = 0): boolean {
    const words = this.#words;
    const at = this.#at;
    const tail = Atomics.load(words, at + TAIL);
    if (((tail - Atomics.load(words, at + HEAD)) | 0) >= this.capacity) return false;
    const cell = at + CELLS + ((tail >>> 0) % this.capacity) * CELL_WORDS;
    words[cell] = a;
    words[cell + 1] = b;
    words[cell + 2] = c;
    words[cell + 3] = d;
    Atomics.store(words, at + TAIL, (tail + 1) | 0);
    if (this.#bell !== null) this.#bell.ring();
    return true;
  }

  /** The oldest descriptor, or null. */
  pop(): Descriptor | null {
    const words = this.#words;
    const at = this.#at;
    const head = Atomics.load(words, at + HEAD);
    if (head === Atomics.load(words, at + TAIL)) return null;
    const cell = at + CELLS + ((head >>> 0) % this.capacity) * CELL_WORDS;
    const found = [words[cell]!, words[cell + 1]!, words[cell + 2]!, words[cell + 3]!] as const;
    Atomics.store(words, at + HEAD, (head + 1) | 0);
    return found;
  }

  /** Descriptors in the ring; exact on the two ends, a moment's figure elsewhere. */
  get length(): number {
    return (Atomics.load(this.#words, this.#at + TAIL) - Atomics.load(this.#words, this.#at + HEAD)) | 0;
  }
}
