/**
 * The copies that fill an image, noted before the bytes are there and made together.
 *
 * A boundary is a hundred pieces, and the code that stores it runs once in a few hundred steps, so it is never hot: each call
 * into native code, and each view made for it, then costs as much as copying some kilobytes. So the places are worked out
 * while the pass is still computed, and afterwards one call copies all pieces of tensors that know how (`TensorBytes.bulk`).
 */
import type { BulkReader, TensorBytes } from '../layer-state.ts';
import type { ImageLayout } from './image.ts';
import type { PagedBytes } from './paged-bytes.ts';

/** id, first byte, length, place in the target */
const PIECE_WORDS = 4;

interface Single {
  readonly source: TensorBytes;
  readonly page: Uint8Array;
  readonly at: number;
  readonly length: number;
  readonly from: number;
}

export class CopyPlan {
  #pieces = new Float64Array(PIECE_WORDS * 64);
  #used = 0;
  #reader: BulkReader | null = null;
  #target: Uint8Array | null = null;
  /** Copies that are made one by one, in order. */
  readonly #singles: Single[] = [];

  /** Writes the image's header now and notes the copies of its payloads. The sources are read by `run`. */
  add(layout: ImageLayout, target: PagedBytes): void {
    target.write(0, layout.header);
    for (const { offset, byteLength, source } of layout.tensors) {
      target.each(offset, offset + byteLength, (page, at, length, from) => {
        if (!this.#note(source, page, at, length, from)) this.#singles.push({ source, page, at, length, from });
      });
    }
  }

  /** Makes all copies. Throws what a source throws. */
  run(): void {
    for (const { source, page, at, length, from } of this.#singles) source.copyTo(page.subarray(at, at + length), from);
    if (this.#used > 0) this.#reader!.readMany(this.#pieces.subarray(0, this.#used), this.#target!);
  }

  /** In place of `run`: the copies as pieces for whoever makes them later. Null when some are none of one reader's. */
  lease(open: (pieces: Float64Array, target: Uint8Array) => number): number | null {
    if (this.#singles.length > 0 || this.#used === 0) return null;
    return open(this.#pieces.subarray(0, this.#used), this.#target!);
  }

  /** False when the copy cannot go with the others: another reader, or memory that is not one with theirs. */
  #note(source: TensorBytes, page: Uint8Array, at: number, length: number, from: number): boolean {
    const { bulk } = source;
    if (bulk === undefined) return false;
    if (this.#target === null) {
      this.#reader = bulk.reader;
      this.#target = new Uint8Array(page.buffer);
    }
    if (this.#reader !== bulk.reader || this.#target.buffer !== page.buffer) return false;
    bulk.eachPiece(from, length, (id, place, size, done) => this.#push(id, place, size, page.byteOffset + at + done));
    return true;
  }

  #push(id: number, from: number, size: number, at: number): void {
    if (this.#used === this.#pieces.length) {
      const grown = new Float64Array(this.#used * 2);
      grown.set(this.#pieces);
      this.#pieces = grown;
    }
    this.#pieces[this.#used++] = id;
    this.#pieces[this.#used++] = from;
    this.#pieces[this.#used++] = size;
    this.#pieces[this.#used++] = at;
  }
}
