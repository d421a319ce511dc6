/**
 * Where every boundary of a session is now: one state each, so that the sum over states is the number captured.
 *
 * | state | entered by | from |
 * |---|---|---|
 * | pending | the engine, when it begins to save | – |
 * | written | the writer, after the rename of a synced file | pending |
 * | durable | the store worker, when all that a restart needs is published and synced | pending, written |
 * | superseded | the store worker: a later snapshot makes it useless; the engine: the same boundary is saved again | written, durable |
 * | evicted | the store worker, for space | durable |
 * | dropped{reason} | whoever refuses, cancels or cleans it | pending, written |
 * | failed | the writer or the store worker, with an errno in its event | pending, written |
 *
 * Atomic words and no lock: any thread moves, the main thread reads. A move is two additions, so a reader looks again until
 * the sum holds.
 */
import { DROP_REASONS, type DropReason } from '../errors.ts';

const STATES = ['pending', 'written', 'durable', 'superseded', 'evicted', 'failed'] as const;
export type LedgerState = (typeof STATES)[number] | `dropped:${DropReason}`;

const CAPTURED = 0;
const COALESCED = 1;
const FIRST_STATE = 2;
const FIRST_DROP = FIRST_STATE + STATES.length;

const PENDING = FIRST_STATE + STATES.indexOf('pending');

export interface LedgerFigures {
  captured: number;
  coalesced: number;
  pending: number;
  written: number;
  durable: number;
  superseded: number;
  evicted: number;
  failed: number;
  /** By reason; reasons that never occurred are left out. */
  dropped: Record<string, number>;
}

export class Ledger {
  static readonly WORDS = FIRST_DROP + DROP_REASONS.length;
  readonly #words: Int32Array;

  /** `words` holds `Ledger.WORDS` words. */
  constructor(words: Int32Array) {
    this.#words = words;
  }

  /** A boundary begins to be saved. */
  capture(): void {
    Atomics.add(this.#words, PENDING, 1);
    Atomics.add(this.#words, CAPTURED, 1);
  }

  /** A save met one of the same boundary in flight; `captured` tells whether it was counted as a boundary before that showed. */
  coalesce(captured: boolean): void {
    if (captured) {
      Atomics.sub(this.#words, CAPTURED, 1);
      Atomics.sub(this.#words, offsetOf('pending'), 1);
    }
    Atomics.add(this.#words, COALESCED, 1);
  }

  move(from: LedgerState, to: LedgerState): void {
    // When the session was given up meanwhile (`failPending`), the boundary is found among the failed.
    if (from !== 'pending' || !this.#takePending()) Atomics.sub(this.#words, offsetOf(from === 'pending' ? 'failed' : from), 1);
    Atomics.add(this.#words, offsetOf(to), 1);
  }

  #takePending(): boolean {
    const at = offsetOf('pending');
    for (let value = Atomics.load(this.#words, at); value > 0; value = Atomics.load(this.#words, at))
      if (Atomics.compareExchange(this.#words, at, value, value - 1) === value) return true;
    return false;
  }

  /** Everything still pending ends as failed: the session's locks are lost, or it is given up. Returns how many. */
  failPending(): number {
    const count = Atomics.exchange(this.#words, offsetOf('pending'), 0);
    Atomics.add(this.#words, offsetOf('failed'), count);
    return count;
  }

  get(state: LedgerState): number {
    return Atomics.load(this.#words, offsetOf(state));
  }

  /** All figures; their sum over states equals `captured` unless moves never paused while it was read. */
  read(): LedgerFigures {
    let figures = this.#once();
    for (let tries = 0; tries < 16 && sumOfStates(figures) !== figures.captured; tries++) figures = this.#once();
    return figures;
  }

  #once(): LedgerFigures {
    const words = this.#words;
    const dropped: Record<string, number> = {};
    for (const [i, reason] of DROP_REASONS.entries()) {
      const count = Atomics.load(words, FIRST_DROP + i);
      if (count !== 0) dropped[reason] = count;
    }
    const state = (name: (typeof STATES)[number]) => Atomics.load(words, offsetOf(name));
    return {
      captured: Atomics.load(words, CAPTURED),
      coalesced: Atomics.load(words, COALESCED),
      pending: state('pending'),
      written: state('written'),
      durable: state('durable'),
      superseded: state('superseded'),
      evicted: state('evicted'),
      failed: state('failed'),
      dropped,
    };
  }
}

/** What the ledger's rule says `captured` must be. */
export function sumOfStates(figures: LedgerFigures): number {
  const { pending, written, durable, superseded, evicted, failed, dropped } = figures;
  return pending + written + durable + superseded + evicted + failed + Object.values(dropped).reduce((sum, count) => sum + count, 0);
}

function offsetOf(state: LedgerState): number {
  if (!state.startsWith('dropped:')) return FIRST_STATE + STATES.indexOf(state as (typeof STATES)[number]);
  return FIRST_DROP + DROP_REASONS.indexOf(state.slice('dropped:'.length) as DropReason);
}
