/**
 * Room for items: a record, the bytes behind it, and the moment both are free again.
 *
 * `pending` is held in every method but `bytesOf`. Bytes are given back once, by whoever ends the item, and only when nobody
 * reads them any more: a reader pins the item (`beginRead`), copies without a lock, and unpins it.
 */
import { PagedBytes } from '../blocks/paged-bytes.ts';
import { FLAG, ITEM, type ItemTable, KIND, STATE } from './item-table.ts';
import type { SessionLayout } from './layout.ts';
import type { SessionLimits } from './limits.ts';
import type { OversizeBuffers } from './oversize.ts';
import type { PagePool } from './page-pool.ts';
import type { PendingBytes, Reservation } from './pending.ts';

export type Refusal = 'queue' | 'bytes' | 'oversize';

/** One use of one item. */
export interface ItemRef {
  readonly item: number;
  readonly generation: number;
}

export class ItemSpace {
  readonly table: ItemTable;
  readonly #pages: PagePool;
  readonly #pending: PendingBytes;
  readonly #oversize: OversizeBuffers;
  readonly #layout: SessionLayout;
  readonly #limits: SessionLimits;

  constructor(table: ItemTable, pages: PagePool, pending: PendingBytes, oversize: OversizeBuffers, layout: SessionLayout, limits: SessionLimits) {
    this.table = table;
    this.#pages = pages;
    this.#pending = pending;
    this.#oversize = oversize;
    this.#layout = layout;
    this.#limits = limits;
  }

  /** A place in the queue (or among the units) and `bytes` under the cap, or why not. A reservation is used up by success. */
  admit(kind: number, bytes: number, reservation: Reservation | null): ItemRef | Refusal {
    const { firstUnit, itemCount, expressItem } = this.#layout;
    if (this.#isOversize(bytes) && !this.#oversize.possible) return 'oversize';
    const reserved = Math.max(0, reservation?.bytes ?? 0);
    if (bytes > reserved && !this.#fitsBeside(reserved, bytes)) return 'bytes';
    const item = kind === KIND.unit ? this.table.claim(firstUnit, itemCount, kind) : this.table.claim(0, expressItem, kind);
    if (item < 0) return 'queue';
    const given = reservation?.surrender() ?? 0;
    if (bytes > given) this.#pending.charge(bytes - given);
    else if (bytes < given) this.#pending.discharge(given - bytes);
    return this.#place(item, bytes, bytes);
  }

  /** The express item, outside queue and cap; 'queue' while another save uses it. */
  admitExpress(bytes: number): ItemRef | Refusal {
    const { expressItem } = this.#layout;
    if (this.#isOversize(bytes) && !this.#oversize.possible) return 'oversize';
    const item = this.table.claim(expressItem, expressItem + 1, KIND.state);
    if (item < 0) return 'queue';
    return this.#place(item, bytes, 0);
  }

  /** Admits what lies in the express item to the queue after all; its bytes move, nothing is copied. */
  admitFromExpress(express: ItemRef): ItemRef | Refusal {
    const { table } = this;
    const bytes = table.getBytes(express.item, ITEM.byteLength);
    if (!this.#pending.fits(bytes)) return 'bytes';
    const item = table.claim(0, this.#layout.expressItem, KIND.state);
    if (item < 0) return 'queue';
    this.#pending.charge(bytes);
    const generation = table.get(item, ITEM.generation);
    table.setBytes(item, ITEM.byteLength, bytes);
    table.setBytes(item, ITEM.charged, bytes);
    table.set(item, ITEM.firstPage, table.get(express.item, ITEM.firstPage));
    table.set(item, ITEM.pageCount, table.get(express.item, ITEM.pageCount));
    if (table.has(express.item, FLAG.oversize)) {
      table.raise(item, FLAG.oversize);
      this.#oversize.move(express.item, express.generation, item, generation);
    }
    table.set(express.item, ITEM.firstPage, -1);
    table.set(express.item, ITEM.pageCount, 0);
    table.set(express.item, ITEM.state, STATE.free);
    return { item, generation };
  }

  /** No lock, for whoever holds the item (its producer, its consumer, a reader that pinned it). Null: an oversize buffer did not reach this thread. */
  bytesOf(item: number): PagedBytes | null {
    const { table } = this;
    const length = table.getBytes(item, ITEM.byteLength);
    if (table.has(item, FLAG.oversize)) {
      const buffer = this.#oversize.get(item, table.get(item, ITEM.generation));
      return buffer === null ? null : PagedBytes.of(new Uint8Array(buffer, 0, length));
    }
    const pages = this.#pages.chain(table.get(item, ITEM.firstPage), table.get(item, ITEM.pageCount));
    return new PagedBytes(
      pages.map((page) => this.#pages.view(page)),
      this.#pages.pageBytes,
      length,
    );
  }

  beginRead(item: number): void {
    this.table.set(item, ITEM.readers, this.table.get(item, ITEM.readers) + 1);
  }

  endRead(item: number): void {
    const { table } = this;
    const readers = table.get(item, ITEM.readers) - 1;
    table.set(item, ITEM.readers, readers);
    if (readers > 0) return;
    if (table.has(item, FLAG.bytesDue)) this.dropBytes(item);
    if (table.has(item, FLAG.freeDue)) this.free(item);
  }

  /** Gives the item's bytes back; when readers hold them, the last one does. */
  dropBytes(item: number): void {
    const { table } = this;
    if (table.get(item, ITEM.readers) > 0) {
      table.raise(item, FLAG.bytesDue);
      return;
    }
    table.clear(item, FLAG.bytesDue);
    const count = table.get(item, ITEM.pageCount);
    if (count > 0) this.#pages.give(table.get(item, ITEM.firstPage), count);
    if (table.has(item, FLAG.oversize)) this.#oversize.drop(item);
    table.set(item, ITEM.firstPage, -1);
    table.set(item, ITEM.pageCount, 0);
    const charged = table.getBytes(item, ITEM.charged);
    table.setBytes(item, ITEM.charged, 0);
    // Also when nothing was charged: whoever waits for the express item looks again.
    this.#pending.discharge(charged);
  }

  /** Frees the record. Its bytes were given back before, or are due. */
  free(item: number): void {
    const { table } = this;
    if (table.get(item, ITEM.readers) > 0) {
      table.raise(item, FLAG.freeDue);
      return;
    }
    table.set(item, ITEM.visible, 0);
    table.set(item, ITEM.state, STATE.free);
    this.#pending.discharge(0);
  }

  #isOversize(bytes: number): boolean {
    return bytes > this.#limits.pendingMaxBytes;
  }

  /** As `PendingBytes.fits`, when `reserved` of the held bytes are the caller's own. */
  #fitsBeside(reserved: number, bytes: number): boolean {
    return this.#pending.held === reserved || this.#pending.fits(bytes - reserved);
  }

  #place(item: number, bytes: number, charged: number): ItemRef {
    const { table } = this;
    const generation = table.get(item, ITEM.generation);
    table.setBytes(item, ITEM.byteLength, bytes);
    table.setBytes(item, ITEM.charged, charged);
    if (this.#isOversize(bytes)) {
      table.raise(item, FLAG.oversize);
      this.#oversize.create(item, generation, bytes);
    } else {
      const count = this.#pages.pagesFor(bytes);
      table.set(item, ITEM.firstPage, this.#pages.take(count));
      table.set(item, ITEM.pageCount, count);
    }
    return { item, generation };
  }
}
