/** The store worker's end of the restore region (see restore-channel.ts). */
import { MISS_REASONS } from '../errors.ts';
import { DATA_AT, DETAIL_AT, DETAIL_MAX, KINDS, PART, PART_SLOTS, type PartPlace, type RestoreResult, RestoreWords, WORD } from './restore-channel.ts';

interface Outstanding {
  readonly offset: number;
  readonly length: number;
}

/** The store worker's end. */
export class RestoreGiver extends RestoreWords {
  /** Places in the data area that are not reclaimed yet, oldest first; one for each descriptor from `partHead` on. */
  readonly #outstanding: Outstanding[] = [];
  #active = 0;

  /** A request that the former worker had begun can't be continued: it ends here, what it published stays until released. */
  abandonFormer(): void {
    const number = this.load(WORD.request);
    for (let counter = this.load(WORD.partHead); counter !== this.load(WORD.partTail); counter = (counter + 1) | 0) {
      const slot = this.slotAt(counter);
      this.#outstanding.push({ offset: this.words[slot + PART.offset]! >>> 0, length: this.words[slot + PART.length]! >>> 0 });
    }
    if (this.load(WORD.begun) === number && this.load(WORD.ended) !== number)
      this.end(number, { tokenCount: 0, reason: 'worker', detail: 'the store worker was replaced' });
  }

  setIndexUsable(usable: boolean): void {
    Atomics.store(this.words, WORD.indexUsable, usable ? 1 : 0);
  }

  /** A new request's number and a private copy of its bytes, or null. */
  poll(): { number: number; request: Uint8Array } | null {
    const number = this.load(WORD.request);
    if (number === this.load(WORD.ended) || number === this.#active) return null;
    this.#active = number;
    Atomics.store(this.words, WORD.begun, number);
    return { number, request: new Uint8Array(this.memory, DATA_AT, this.load(WORD.requestBytes)).slice() };
  }

  isCancelled(number: number): boolean {
    return this.load(WORD.cancel) === number;
  }

  #reclaim(): void {
    while (this.#outstanding.length > 0 && Atomics.load(this.words, this.slotAt(this.load(WORD.partHead)) + PART.released) === 1) {
      this.#outstanding.shift();
      Atomics.store(this.words, WORD.partHead, (this.load(WORD.partHead) + 1) | 0);
    }
  }

  /** A place of `bytes` bytes; 'wait' until the engine has released parts, 'never' when no region can be that large. */
  allocate(bytes: number): Uint8Array | 'wait' | 'never' {
    this.#reclaim();
    const size = Math.ceil(bytes / 64) * 64;
    if (size > this.capacity) {
      if (DATA_AT + size > this.memory.maxByteLength) return 'never';
      // Room for two, so that the next file is read while this one is copied.
      try {
        this.memory.grow(Math.min(this.memory.maxByteLength, DATA_AT + 2 * size));
      } catch {
        return 'never'; // RangeError: the system has no memory for it
      }
    }
    if (this.#outstanding.length >= PART_SLOTS) return 'wait';
    const place = (at: number) => new Uint8Array(this.memory, DATA_AT + at, bytes);
    const oldest = this.#outstanding[0];
    const newest = this.#outstanding.at(-1);
    if (oldest === undefined || newest === undefined) return place(0);
    const first = oldest.offset - DATA_AT;
    const next = Math.ceil((newest.offset - DATA_AT + newest.length) / 64) * 64;
    if (newest.offset >= oldest.offset) {
      if (this.capacity - next >= size) return place(next);
      return first >= size ? place(0) : 'wait';
    }
    return first - next >= size ? place(next) : 'wait';
  }

  /** Hands over a verified file that lies in a place from `allocate`. */
  publish(place: PartPlace, bytes: Uint8Array): void {
    const tail = this.load(WORD.partTail);
    const slot = this.slotAt(tail);
    const { words } = this;
    words[slot + PART.kind] = KINDS.indexOf(place.part);
    words[slot + PART.blockIndex] = place.blockIndex;
    words[slot + PART.start] = place.start;
    words[slot + PART.end] = place.end;
    words[slot + PART.offset] = bytes.byteOffset | 0;
    words[slot + PART.length] = bytes.byteLength | 0;
    Atomics.store(words, slot + PART.released, 0);
    this.#outstanding.push({ offset: bytes.byteOffset, length: bytes.byteLength });
    // The descriptor is complete before the counter shows it.
    Atomics.store(words, WORD.partTail, (tail + 1) | 0);
    this.#notify();
  }

  end(number: number, result: RestoreResult): void {
    const detail = new TextEncoder().encode(result.detail).subarray(0, DETAIL_MAX);
    new Uint8Array(this.memory, DETAIL_AT, detail.length).set(detail);
    Atomics.store(this.words, WORD.detailBytes, detail.length);
    Atomics.store(this.words, WORD.resultTokens, result.tokenCount);
    Atomics.store(this.words, WORD.resultReason, result.reason === null ? 0 : MISS_REASONS.indexOf(result.reason) + 1);
    Atomics.store(this.words, WORD.ended, number);
    this.#active = 0;
    this.#notify();
  }

  #notify(): void {
    Atomics.add(this.words, WORD.signal, 1);
    Atomics.notify(this.words, WORD.signal);
  }
}
