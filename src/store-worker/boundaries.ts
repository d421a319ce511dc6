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
  /** Of a boundary whose state goes on from those of the blocks before: whether all it needs is there by now. */
  readonly whole?: () => boolean;
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
      this.#settle(block, this.#waiting.get(block) ?? []);
    }
  }

  /** A state was published: boundaries that go on from it look again. */
  statesArrived(): void {
    for (const [block, waiting] of [...this.#waiting]) if (waiting.some(({ whole }) => whole !== undefined)) this.#settle(block, waiting, true);
  }

  #settle(block: string, waiting: readonly Boundary[], onlyStates = false): void {
    const rest = waiting.filter(({ whole }) => (whole === undefined ? onlyStates : !whole()));
    if (rest.length === 0) this.#waiting.delete(block);
    else this.#waiting.set(block, rest);
    for (const boundary of waiting) if (!rest.includes(boundary)) this.durable(block, boundary);
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
