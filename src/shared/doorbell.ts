/**
 * How a loop thread sleeps until there is work: one word per consumer, whatever the number of rings and ports it serves.
 *
 * Order that avoids a lost wake-up: the consumer reads the word (`seen`), then looks into every ring and port, and sleeps on
 * the value it read only when all were empty. A producer publishes first and rings then: either the consumer finds the work,
 * or the word has changed and it does not sleep. An idle consumer sleeps without slices: an idle app does not wake up.
 */
import { waitForWork } from './sync/waits.ts';

export class Doorbell {
  static readonly WORDS = 1;
  readonly #words: Int32Array;
  readonly #at: number;

  constructor(words: Int32Array, at: number) {
    this.#words = words;
    this.#at = at;
  }

  /** Any thread, the main thread too. Call it after the work is published. */
  ring(): void {
    Atomics.add(this.#words, this.#at, 1);
    Atomics.notify(this.#words, this.#at);
  }

  /** The consumer reads this before it looks for work. */
  seen(): number {
    return Atomics.load(this.#words, this.#at);
  }

  /** Sleeps until the bell rings after `seen` was read, or until `timeoutMs` passes. True when it rang. */
  wait(seen: number, timeoutMs = Number.POSITIVE_INFINITY): boolean {
    return waitForWork(this.#words, this.#at, seen, timeoutMs) !== 'timed-out';
  }
}
