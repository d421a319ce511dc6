/**
 * The writer's bell for a boundary that was published, rung beside the next pass.
 *
 * Engine thread only. Waking a thread costs the one that wakes it up to as much as all else behind a pass but the copy; while
 * the next pass is computed it costs nothing. What is published is found by whoever looks, so a writer that is awake does not
 * wait for the bell. A bell is owed over one round of the scheduler at most: `ring` comes before the engine thread waits, rests or
 * ends, and otherwise at the latest when a whole round had no pass.
 */
import type { Doorbell } from '../../shared/doorbell.ts';
import type { PassCompanion } from './recorder.ts';

export class OwedBell {
  readonly #bell: Doorbell;
  /** Counts what was owed, so that the one of this round is told from one that is owed for longer. */
  #count = 0;
  #owed = false;
  #countLastRound = 0;

  constructor(bell: Doorbell) {
    this.#bell = bell;
  }

  owe(): void {
    this.#count++;
    this.#owed = true;
  }

  ring(): void {
    if (!this.#owed) return;
    this.#owed = false;
    this.#bell.ring();
  }

  /** What goes along with the next pass: `beside`, and the bell. */
  alongside(beside: PassCompanion | null): PassCompanion | null {
    if (!this.#owed) return beside;
    return {
      built: () => beside?.built() ?? [],
      running: () => {
        this.ring();
        beside?.running();
      },
    };
  }

  /** `more`: another round follows at once. */
  endOfRound(more: boolean): void {
    if (!more || this.#count === this.#countLastRound) this.ring();
    this.#countLastRound = this.#count;
  }
}
