/**
 * Which sequence works next. First come, first served up to `maxNumSeqs`; the running ones take turns, one piece of
 * work each, every sequence decoded by itself.
 *
 * Engine thread only. A step never blocks on a reader, the disk or another thread: a sequence that has to wait says
 * 'waiting' and is asked again in the next round.
 */
import type { Sequence } from './sequence.ts';

export type RoundResult = 'worked' | 'waiting' | 'idle';

export class Scheduler {
  readonly #maxRunning: number;
  readonly #queue: Sequence[] = [];
  #running: Sequence[] = [];
  /** Those that had nothing to do when they were last asked. */
  readonly #waiting = new Set<Sequence>();
  #current: Sequence | null = null;

  constructor(maxRunning: number) {
    this.#maxRunning = maxRunning;
  }

  add(sequence: Sequence): void {
    this.#queue.push(sequence);
  }

  /** True when all but the one that is being asked wait for their reader or for the store: waiting then holds nobody up. */
  get alone(): boolean {
    return this.#running.every((sequence) => sequence === this.#current || this.#waiting.has(sequence));
  }

  /** True while some sequence waits for the store: it is asked again soon, nobody will nudge for it. */
  get restoring(): boolean {
    return this.#running.some((sequence) => sequence.state === 'restoring');
  }

  /** One piece of work for each running sequence. */
  round(): RoundResult {
    this.#admit();
    if (this.#running.length === 0) return 'idle';
    let worked = false;
    let ended = false;
    for (const sequence of this.#running) {
      this.#current = sequence;
      const result = sequence.step();
      if (result === 'waiting') this.#waiting.add(sequence);
      else this.#waiting.delete(sequence);
      if (result !== 'waiting') worked = true;
      if (result === 'ended') ended = true;
    }
    this.#current = null;
    if (ended) this.#running = this.#running.filter((sequence) => sequence.state !== 'finished');
    return worked ? 'worked' : 'waiting';
  }

  /** Ends everything, queued or running, as aborted. */
  cancelAll(): void {
    for (const sequence of this.#takeAll()) sequence.cancel();
  }

  /** Ends everything, queued or running, with this error. */
  failAll(error: unknown): void {
    for (const sequence of this.#takeAll()) sequence.fail(error);
  }

  #takeAll(): Sequence[] {
    const all = [...this.#running, ...this.#queue.splice(0)];
    this.#running = [];
    this.#waiting.clear();
    return all;
  }

  #admit(): void {
    // An abort takes effect at once also for those that wait behind a long answer.
    for (let i = this.#queue.length - 1; i >= 0; i--) {
      if (this.#queue[i]!.endIfAborted()) this.#queue.splice(i, 1);
    }
    while (this.#running.length < this.#maxRunning && this.#queue.length > 0) this.#running.push(this.#queue.shift()!);
  }
}
