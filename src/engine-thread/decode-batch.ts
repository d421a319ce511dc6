/**
 * Sequences that decode together: their rows lie beside each other in caches of several rows, and one forward pass gives
 * each its next token.
 *
 * Engine thread only. Rows come and go between two passes (`arrange`), which copies all of them; so who pauses shortly should
 * not leave. A member has a seat instead of caches: its row is copied out when it is captured or ends, and given back when it
 * leaves. One sequence by itself is never in here: it keeps its caches and takes the very steps that it would take if
 * nobody else had come.
 */
import type { LayerCache } from './cache/layer-cache.ts';
import { extractRow, gatherRows, releaseCaches } from './cache/registry.ts';
import type { Stream } from './mlx/types.ts';

/** What a member has of its row. */
export interface Seat {
  /** The row as caches of its own, evaluated, to be released by the caller; the batch keeps the row. */
  copy(): LayerCache[];
  /** The row is wanted no more: it goes with the next `arrange`, and at once with the last that is wanted. */
  giveUp(): void;
}

export interface BatchMember {
  /** Its own, as long as it is not in the batch. */
  readonly caches: readonly LayerCache[];
  /** It is in the batch: its caches have been copied, it lets them go. */
  seated(seat: Seat): void;
  /** It has left: the row is its own again. */
  adopt(caches: LayerCache[]): void;
}

export class DecodeBatch<Member extends BatchMember> {
  readonly #stream: Stream;
  #members: readonly Member[] = [];
  #caches: LayerCache[] = [];
  readonly #ended = new Set<Member>();

  constructor(stream: Stream) {
    this.#stream = stream;
  }

  /** In the order of their rows. */
  get members(): readonly Member[] {
    return this.#members;
  }

  get caches(): LayerCache[] {
    return this.#caches;
  }

  /**
   * From now on the batch holds exactly these; with fewer than two, nobody. Everything new is made before anything old is let
   * go: when this throws, every member still has its row and everybody else still has its own caches.
   */
  arrange(wanted: readonly Member[]): void {
    const members = wanted.length < 2 ? [] : wanted;
    const stays = this.#members.filter((member) => members.includes(member));
    const joins = members.filter((member) => !stays.includes(member));
    if (joins.length === 0 && stays.length === this.#members.length) return;

    const leaves: { member: Member; caches: LayerCache[] }[] = [];
    let gathered: LayerCache[] = [];
    try {
      for (const member of this.#members) if (!stays.includes(member) && !this.#ended.has(member)) leaves.push({ member, caches: this.#rowOf(member) });
      const kept = stays.map((member) => ({ caches: this.#caches, row: this.#members.indexOf(member) }));
      const brought = joins.map((member) => ({ caches: member.caches, row: 0 }));
      if (members.length > 0) gathered = gatherRows([...kept, ...brought], this.#stream);
    } catch (error) {
      for (const { caches } of leaves) releaseCaches(caches);
      throw error;
    }
    releaseCaches(this.#caches);
    this.#caches = gathered;
    this.#members = [...stays, ...joins];
    this.#ended.clear();
    for (const { member, caches } of leaves) member.adopt(caches);
    for (const member of joins) member.seated({ copy: () => this.#rowOf(member), giveUp: () => this.#giveUp(member) });
  }

  /** Lets all rows go without giving them back: the pass has failed, or the engine ends. */
  release(): void {
    releaseCaches(this.#caches);
    this.#caches = [];
    this.#members = [];
    this.#ended.clear();
  }
  #giveUp(member: Member): void {
    this.#ended.add(member);
    if (this.#ended.size === this.#members.length) this.release();
  }

  #rowOf(member: Member): LayerCache[] {
    return extractRow(this.#caches, this.#members.indexOf(member), this.#stream);
  }
}
