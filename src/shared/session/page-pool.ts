/**
 * The arena's pages: which are free, and which were touched before.
 *
 * Guarded by `pending` (every method but `view` and `touch`). An item is a chain of pages, so that whatever was admitted by
 * bytes can be placed. A page that was never written costs 10 to 40 times the copy into it, therefore freed pages are used
 * again first, newest first, and the writer touches fresh ones when it is idle, as far as recent items suggest.
 */
import { TidemarkError } from '../errors.ts';

const FREE_HEAD = 0; // touched and free, a chain; -1 ends it
const FREE_COUNT = 1;
const FRESH_NEXT = 2; // pages from here on were never touched
const CAPACITY = 3;
const IN_USE = 4;
const WANTED_WARM = 5; // how many free touched pages recent items call for
const HEADER = 16;

const END = -1;
const OS_PAGE = 4096;

export class PagePool {
  readonly pageBytes: number;
  readonly #words: Int32Array;
  readonly #arena: SharedArrayBuffer;

  static wordsFor(pages: number): number {
    return HEADER + pages;
  }

  static initialize(words: Int32Array, pages: number): void {
    words[FREE_HEAD] = END;
    words[CAPACITY] = pages;
  }

  constructor(words: Int32Array, arena: SharedArrayBuffer, pageBytes: number) {
    this.#words = words;
    this.#arena = arena;
    this.pageBytes = pageBytes;
  }

  pagesFor(bytes: number): number {
    return Math.ceil(bytes / this.pageBytes);
  }

  get free(): number {
    return this.#words[CAPACITY]! - this.#words[IN_USE]!;
  }

  /** Free pages that have memory behind them. */
  get touchedFree(): number {
    return Atomics.load(this.#words, FREE_COUNT);
  }

  get inUse(): number {
    return Atomics.load(this.#words, IN_USE);
  }

  /** Takes `count` pages; the first page's number, the others follow by `next`. Admission has made sure that they exist. */
  take(count: number): number {
    if (count > this.free)
      throw new TidemarkError('INVALID_ARGUMENT', `the arena has ${this.free} free pages, ${count} were asked for: admission and pages disagree`);
    const words = this.#words;
    let head = END;
    for (let i = 0; i < count; i++) {
      const page = this.#takeOne();
      words[HEADER + page] = head;
      head = page;
    }
    words[IN_USE]! += count;
    // Room for the next items of this size while this one is written; one byte cap's worth at most, by construction.
    words[WANTED_WARM] = Math.min(words[CAPACITY]!, Math.max(words[WANTED_WARM]!, 3 * count));
    return head;
  }

  /** Gives a chain of `count` pages back. */
  give(head: number, count: number): void {
    for (let page = head, i = 0; i < count; i++) {
      const next = this.#words[HEADER + page]!;
      this.#pushFree(page);
      page = next;
    }
    this.#words[IN_USE]! -= count;
  }

  /** The page numbers of a chain, in order. */
  chain(head: number, count: number): number[] {
    const pages: number[] = [];
    for (let page = head; pages.length < count; page = this.#words[HEADER + page]!) pages.push(page);
    return pages;
  }

  /** A fresh page to touch ahead of need, or -1. It belongs to the caller until `giveTouched`. */
  takeFresh(): number {
    const words = this.#words;
    if (words[FREE_COUNT]! >= words[WANTED_WARM]! || words[FRESH_NEXT]! >= words[CAPACITY]!) return END;
    words[IN_USE]!++;
    return words[FRESH_NEXT]!++;
  }

  giveTouched(page: number): void {
    this.#pushFree(page);
    this.#words[IN_USE]!--;
  }

  /** No lock: makes the system back the page with memory. */
  touch(page: number): void {
    const bytes = this.view(page);
    for (let at = 0; at < bytes.length; at += OS_PAGE) bytes[at] = 0;
  }

  view(page: number): Uint8Array {
    return new Uint8Array(this.#arena, page * this.pageBytes, this.pageBytes);
  }

  #takeOne(): number {
    const words = this.#words;
    const warm = words[FREE_HEAD]!;
    if (warm === END) return words[FRESH_NEXT]!++;
    words[FREE_HEAD] = words[HEADER + warm]!;
    words[FREE_COUNT]!--;
    return warm;
  }

  #pushFree(page: number): void {
    const words = this.#words;
    words[HEADER + page] = words[FREE_HEAD]!;
    words[FREE_HEAD] = page;
    words[FREE_COUNT]!++;
  }
}
