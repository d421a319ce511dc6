/**
 * Which sequence works next.
 *
 * Admission is first come, first served up to `maxNumSeqs`. In each round prefills take turns, chunk by chunk, until the
 * round's budget of tokens is spent; then every answer that runs gets one token, all of them in one pass (`DecodeBatch`). So a
 * long prompt delays running answers by one chunk at most. Deterministic engines decode each sequence by itself.
 *
 * Engine thread only. A step never blocks on a reader, the disk or another thread: a sequence that has to wait says
 * 'waiting' and is asked again in the next round.
 */
import type { LayerCache } from './cache/layer-cache.ts';
import { DecodeBatch } from './decode-batch.ts';
import type { Stream } from './mlx/types.ts';
import type { Sequence, StepResult } from './sequence.ts';

export type RoundResult = 'worked' | 'waiting' | 'idle';

export interface SchedulerOptions {
  maxRunning: number;
  /** Tokens of prefill in one round. A chunk that is longer takes a round for itself. */
  prefillBudget: number;
  /** Each sequence is decoded by itself. */
  deterministic: boolean;
}

/** What decoding together needs of the model. */
export interface BatchDecoder {
  readonly stream: Stream;
  /** One token for each row; float32 logits of each. */
  decode(tokens: readonly number[], caches: LayerCache[]): Float32Array[];
}

export class Scheduler {
  readonly #options: SchedulerOptions;
  readonly #queue: Sequence[] = [];
  #running: Sequence[] = [];
  /** Those that had nothing to do when they were last asked. */
  readonly #waiting = new Set<Sequence>();
  #current: Sequence | null = null;
  /** Prefills, whose turn it is first. */
  #prefills: Sequence[] = [];
  #decoder: BatchDecoder | null = null;
  #batch: DecodeBatch<Sequence> | null = null;

  constructor(options: SchedulerOptions) {
    this.#options = options;
  }

  /** Without it, and with `deterministic`, each sequence is decoded by itself. */
  decodeWith(decoder: BatchDecoder): void {
    if (this.#options.deterministic) return;
    this.#decoder = decoder;
    this.#batch = new DecodeBatch(decoder.stream);
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

  round(): RoundResult {
    this.#admit();
    if (this.#running.length === 0) return 'idle';
    // Each does one thing in a round: what begins now prefills in the next.
    const [begins, prefills, decodes] = [this.#in('queued', 'restoring'), this.#in('prefill'), this.#in('decode')];
    // Lookups and restores are asked in each round.
    const results = begins.map((sequence) => this.#ask(sequence, () => sequence.step()));
    results.push(...this.#prefill(prefills), ...this.#decode(decodes));
    this.#current = null;
    if (results.includes('ended')) this.#running = this.#running.filter((sequence) => sequence.state !== 'finished');
    return results.some((result) => result !== 'waiting') ? 'worked' : 'waiting';
  }

  /** Ends everything, queued or running, as aborted. */
  cancelAll(): void {
    for (const sequence of this.#takeAll()) sequence.cancel();
    this.#batch?.release();
  }

  /** Ends everything, queued or running, with this error. */
  failAll(error: unknown): void {
    for (const sequence of this.#takeAll()) sequence.fail(error);
    this.#batch?.release();
  }

  /** Whoever has waited longest goes first, so that a short prompt is not held up by a long one. */
  #prefill(ready: readonly Sequence[]): StepResult[] {
    const turns = [...this.#prefills.filter((sequence) => ready.includes(sequence)), ...ready.filter((sequence) => !this.#prefills.includes(sequence))];
    const results: StepResult[] = [];
    let left = this.#options.prefillBudget;
    while (results.length < turns.length) {
      const sequence = turns[results.length]!;
      const tokens = sequence.nextPass;
      if (results.length > 0 && tokens > left) break;
      left -= tokens;
      results.push(this.#ask(sequence, () => sequence.step()));
    }
    this.#prefills = [...turns.slice(results.length), ...turns.slice(0, results.length)];
    return results;
  }

  #decode(sequences: readonly Sequence[]): StepResult[] {
    const batch = this.#batch;
    // By itself a sequence takes the path it takes when there is nobody else, its own caches included.
    if (batch === null || (sequences.length < 2 && batch.members.length === 0)) {
      return sequences.map((sequence) => this.#ask(sequence, () => sequence.step()));
    }
    const results: StepResult[] = [];
    const ready: Sequence[] = [];
    for (const sequence of sequences) {
      const answer = this.#ask(sequence, () => sequence.ready());
      if (answer === 'ready') ready.push(sequence);
      else results.push(answer);
    }
    const seated = new Set(batch.members);
    // While everybody waits for a reader the rows stay where they are.
    const seats = ready.length > 0 ? ready : batch.members.filter((sequence) => sequence.state === 'decode');
    try {
      batch.arrange(seats);
    } catch (error) {
      // Usually memory: who came last has to go. The others still have what they had.
      // With nobody ready it can wait: the rows stay where they are.
      if (ready.length === 0) return results;
      const joining = ready.filter((sequence) => !seated.has(sequence));
      for (const sequence of joining.length > 0 ? joining : ready) sequence.fail(error);
      return [...results, 'ended'];
    }
    if (ready.length === 0) return results;
    const alone = ready.length === 1 ? ready[0]! : null;
    if (alone !== null) return [...results, this.#ask(alone, () => alone.step())];
    return [...results, ...this.#pass(batch)];
  }

  /** One token for each member of the batch. */
  #pass(batch: DecodeBatch<Sequence>): StepResult[] {
    const members = batch.members;
    let rows: Float32Array[];
    try {
      rows = this.#decoder!.decode(
        members.map((sequence) => sequence.nextToken),
        batch.caches,
      );
    } catch (error) {
      // The caches of a failed pass are of no use to anybody.
      for (const sequence of members) sequence.fail(error);
      batch.release();
      return ['ended'];
    }
    return members.map((sequence, i) => this.#ask(sequence, () => sequence.decoded(rows[i]!)));
  }

  #in(...states: Sequence['state'][]): Sequence[] {
    return this.#running.filter((sequence) => states.includes(sequence.state));
  }

  #ask<Answer extends StepResult | 'ready'>(sequence: Sequence, work: () => Answer): Answer {
    this.#current = sequence;
    const result = work();
    if (result === 'waiting') this.#waiting.add(sequence);
    else this.#waiting.delete(sequence);
    return result;
  }

  #takeAll(): Sequence[] {
    const all = [...this.#running, ...this.#queue.splice(0)];
    this.#running = [];
    this.#prefills = [];
    this.#waiting.clear();
    return all;
  }

  #admit(): void {
    // An abort takes effect at once also for those that wait behind a long answer.
    for (let i = this.#queue.length - 1; i >= 0; i--) {
      if (this.#queue[i]!.endIfAborted()) this.#queue.splice(i, 1);
    }
    while (this.#running.length < this.#options.maxRunning && this.#queue.length > 0) this.#running.push(this.#queue.shift()!);
  }
}
