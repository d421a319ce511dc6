/**
 * Which boundaries wait to be called durable, and which have been.
 *
 * A boundary is durable when its own parts are published and the chain below it is whole; parents may arrive later (another
 * request stores them, or a failed unit is stored again), so a boundary that is complete but for them waits here.
 */
import type { StoreEvent } from '../shared/events.ts';
import type { Session } from '../shared/session/index.ts';

export interface Boundary {
  readonly session: number;
  readonly requestNo: number;
  readonly tokenCount: number;
  /** The ledger it is counted in, and the state it has there now; null when it was settled elsewhere. */
  readonly ledger: { readonly session: Session; readonly state: 'pending' | 'written' } | null;
}

export class Boundaries {
  readonly #waiting = new Map<string, Boundary[]>();
  /** Per block, the ledgers in which it is counted as durable. */
  readonly #durable = new Map<string, Session[]>();
  readonly #emit: (event: StoreEvent) => void;

  constructor(emit: (event: StoreEvent) => void) {
    this.#emit = emit;
  }

  /** Everything of the boundary itself is stored; parents are missing. */
  wait(block: string, boundary: Boundary): void {
    this.#waiting.set(block, [...(this.#waiting.get(block) ?? []), boundary]);
  }

  durable(block: string, boundary: Boundary): void {
    const { session, requestNo, tokenCount, ledger } = boundary;
    if (ledger !== null) {
      ledger.session.ledger.move(ledger.state, 'durable');
      this.#durable.set(block, [...(this.#durable.get(block) ?? []), ledger.session]);
    }
    this.#emit({ type: 'durable', session, requestNo, tokenCount, block });
  }

  /** These chains have become whole. */
  chained(blocks: readonly string[]): void {
    for (const block of blocks) {
      const waiting = this.#waiting.get(block) ?? [];
      this.#waiting.delete(block);
      for (const boundary of waiting) this.durable(block, boundary);
    }
  }

  evicted(block: string): void {
    for (const session of this.#durable.get(block) ?? []) session.ledger.move('durable', 'evicted');
    this.#durable.delete(block);
  }

  /** Nobody listens to that session any more. */
  forget(session: Session): void {
    for (const [block, waiting] of this.#waiting) {
      const rest = waiting.filter((boundary) => boundary.ledger?.session !== session);
      if (rest.length === 0) this.#waiting.delete(block);
      else this.#waiting.set(block, rest);
    }
    for (const [block, sessions] of this.#durable) {
      const rest = sessions.filter((other) => other !== session);
      if (rest.length === 0) this.#durable.delete(block);
      else this.#durable.set(block, rest);
    }
  }
}
