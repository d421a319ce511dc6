/**
 * Words that the app's main thread and the engine thread share about each request, so that neither waits for the
 * other's event loop: the engine reads aborts and the reader's progress between steps, main reads the state at any time.
 *
 * Main owns a slot from `claim` to `free`. Each claim bumps the slot's generation; an abort names the generation it
 * means, so a stale abort never hits the slot's next user (design section 7).
 */

const WORDS = 8;
const GENERATION = 0;
const ABORT_GENERATION = 1;
const CHUNKS_READ = 2;
const STATE = 3;
const PAUSED = 4;

export const REQUEST_STATES = ['free', 'queued', 'restoring', 'prefill', 'decode', 'finished'] as const;
export type RequestState = (typeof REQUEST_STATES)[number];

/** Names one use of one slot. */
export interface RequestRef {
  slot: number;
  generation: number;
}

export class RequestTable {
  readonly #words: Int32Array;
  readonly slots: number;

  static create(slots: number): SharedArrayBuffer {
    return new SharedArrayBuffer(slots * WORDS * 4);
  }

  constructor(memory: SharedArrayBuffer) {
    this.#words = new Int32Array(memory);
    this.slots = this.#words.length / WORDS;
  }

  /** Main thread: takes a free slot, or null when all are in use. */
  claim(): RequestRef | null {
    for (let slot = 0; slot < this.slots; slot++) {
      const at = slot * WORDS;
      if (this.#words[at + STATE] !== 0) continue;
      const generation = (this.#words[at + GENERATION]! + 1) | 0 || 1;
      Atomics.store(this.#words, at + CHUNKS_READ, 0);
      Atomics.store(this.#words, at + PAUSED, 0);
      Atomics.store(this.#words, at + GENERATION, generation);
      Atomics.store(this.#words, at + STATE, REQUEST_STATES.indexOf('queued'));
      return { slot, generation };
    }
    return null;
  }

  /** Main thread: gives the slot back once the engine has said that the request ended. */
  free(ref: RequestRef): void {
    if (this.#is(ref)) Atomics.store(this.#words, ref.slot * WORDS + STATE, 0);
  }

  abort(ref: RequestRef): void {
    Atomics.store(this.#words, ref.slot * WORDS + ABORT_GENERATION, ref.generation);
  }

  isAborted(ref: RequestRef): boolean {
    return Atomics.load(this.#words, ref.slot * WORDS + ABORT_GENERATION) === ref.generation;
  }

  /**
   * Main thread: the reader took one more chunk. Returns true when the engine had paused the sequence for it and must be woken.
   * An answer that has ended may be read long afterwards: its slot is another request's by then, whose reader it is not.
   */
  chunkRead(ref: RequestRef): boolean {
    if (!this.#is(ref)) return false;
    Atomics.add(this.#words, ref.slot * WORDS + CHUNKS_READ, 1);
    return Atomics.exchange(this.#words, ref.slot * WORDS + PAUSED, 0) === 1;
  }

  chunksRead(ref: RequestRef): number {
    return Atomics.load(this.#words, ref.slot * WORDS + CHUNKS_READ);
  }

  /**
   * Engine thread: marks the sequence as waiting for its reader. The caller compares `chunksRead` again afterwards:
   * a read between its first look and this store would otherwise never wake it.
   */
  pause(ref: RequestRef): void {
    Atomics.store(this.#words, ref.slot * WORDS + PAUSED, 1);
  }

  setState(ref: RequestRef, state: RequestState): void {
    if (this.#is(ref)) Atomics.store(this.#words, ref.slot * WORDS + STATE, REQUEST_STATES.indexOf(state));
  }

  /** How many slots are in each state. */
  count(): Record<RequestState, number> {
    const counts: Record<RequestState, number> = { free: 0, queued: 0, restoring: 0, prefill: 0, decode: 0, finished: 0 };
    for (let slot = 0; slot < this.slots; slot++) counts[REQUEST_STATES[Atomics.load(this.#words, slot * WORDS + STATE)]!]++;
    return counts;
  }

  #is(ref: RequestRef): boolean {
    return Atomics.load(this.#words, ref.slot * WORDS + GENERATION) === ref.generation;
  }
}
