/**
 * Buffers of items that are larger than the whole cap. Such an item is admitted alone, so the arena has no room set aside for
 * it: it gets one buffer of its own, counted in full, which reaches its consumer's loop by message. The message may come
 * after the descriptor: the consumer sets the item aside until it has both. Each thread keeps its own references; an entry
 * goes when its item's generation has passed.
 */
import type { HubMail } from '../worker-init.ts';
import type { ItemTable } from './item-table.ts';

/** Item and generation in one number below 2^53. */
const GENERATIONS = 2 ** 30;

export class OversizeBuffers {
  readonly #session: number;
  readonly #table: ItemTable;
  readonly #held = new Map<number, { generation: number; buffer: SharedArrayBuffer }>();
  readonly #post: ((mail: HubMail) => void) | null;

  constructor(session: number, table: ItemTable, post: ((mail: HubMail) => void) | null) {
    this.#session = session;
    this.#table = table;
    this.#post = post;
  }

  /** Whether this thread can send a buffer to the loops. */
  get possible(): boolean {
    return this.#post !== null;
  }

  create(item: number, generation: number, bytes: number): void {
    this.#held.set(item, { generation, buffer: new SharedArrayBuffer(bytes) });
  }

  /** Gives the buffer to the consumer. */
  hand(item: number, generation: number, to: 'writer' | 'store'): void {
    const buffer = this.get(item, generation);
    if (buffer !== null) this.#post?.({ to, message: { type: 'buffer', session: this.#session, key: item * GENERATIONS + generation, buffer } });
  }

  receive(key: number, buffer: SharedArrayBuffer): void {
    const item = Math.floor(key / GENERATIONS);
    const generation = key % GENERATIONS;
    if (this.#table.is(item, generation)) this.#held.set(item, { generation, buffer });
  }

  get(item: number, generation: number): SharedArrayBuffer | null {
    const entry = this.#held.get(item);
    return entry !== undefined && entry.generation === generation ? entry.buffer : null;
  }

  move(from: number, fromGeneration: number, to: number, toGeneration: number): void {
    const buffer = this.get(from, fromGeneration);
    if (buffer === null) return;
    this.#held.delete(from);
    this.#held.set(to, { generation: toGeneration, buffer });
  }

  drop(item: number): void {
    this.#held.delete(item);
  }

  /** Forgets buffers of items that have ended on another thread. */
  sweep(): void {
    for (const [item, { generation }] of this.#held) if (!this.#table.is(item, generation)) this.#held.delete(item);
  }
}
