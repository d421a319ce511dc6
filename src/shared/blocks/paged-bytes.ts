/**
 * A run of bytes that lies in one or several memory pages, so that one codec serves arena pages, restore regions and
 * plain buffers. Pages are views; nothing is copied unless asked for.
 */
export class PagedBytes {
  readonly byteLength: number;
  readonly #pages: readonly Uint8Array[];
  readonly #pageBytes: number;

  /** All pages but the last hold `pageBytes` bytes; the run ends after `byteLength` bytes. */
  constructor(pages: readonly Uint8Array[], pageBytes: number, byteLength: number) {
    if (byteLength > pages.length * pageBytes) throw new RangeError(`${byteLength} bytes do not fit into ${pages.length} pages of ${pageBytes}`);
    this.#pages = pages;
    this.#pageBytes = pageBytes;
    this.byteLength = byteLength;
  }

  static of(bytes: Uint8Array): PagedBytes {
    return new PagedBytes([bytes], Math.max(bytes.length, 1), bytes.length);
  }

  /** The views that make up bytes [from, to), in order. */
  *segments(from: number, to: number): Generator<Uint8Array, void, undefined> {
    if (from < 0 || to > this.byteLength || from > to) throw new RangeError(`bytes [${from}, ${to}) lie outside a run of ${this.byteLength}`);
    let at = from;
    while (at < to) {
      const page = Math.floor(at / this.#pageBytes);
      const offset = at - page * this.#pageBytes;
      const length = Math.min(this.#pageBytes - offset, to - at);
      yield this.#pages[page]!.subarray(offset, offset + length);
      at += length;
    }
  }

  /** Visits the pages that hold bytes [from, to), in order: `length` bytes at `at` of `page` are those from `done` on. */
  each(from: number, to: number, visit: (page: Uint8Array, at: number, length: number, done: number) => void): void {
    if (from < 0 || to > this.byteLength || from > to) throw new RangeError(`bytes [${from}, ${to}) lie outside a run of ${this.byteLength}`);
    for (let at = from; at < to; ) {
      const page = Math.floor(at / this.#pageBytes);
      const offset = at - page * this.#pageBytes;
      const length = Math.min(this.#pageBytes - offset, to - at);
      visit(this.#pages[page]!, offset, length, at - from);
      at += length;
    }
  }

  /** Copies bytes [from, from + target.length) out. */
  read(from: number, target: Uint8Array): void {
    let done = 0;
    for (const segment of this.segments(from, from + target.length)) {
      target.set(segment, done);
      done += segment.length;
    }
  }

  /** Copies `source` in at `from`. */
  write(from: number, source: Uint8Array): void {
    let done = 0;
    for (const segment of this.segments(from, from + source.length)) {
      segment.set(source.subarray(done, done + segment.length));
      done += segment.length;
    }
  }

  /** A private, contiguous copy of bytes [from, to). */
  slice(from: number, to: number): Uint8Array {
    const copy = new Uint8Array(to - from);
    this.read(from, copy);
    return copy;
  }
}
