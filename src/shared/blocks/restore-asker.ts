/** The engine's end of the restore region (see restore-channel.ts). */
import { MISS_REASONS } from '../errors.ts';
import { DATA_AT, DETAIL_AT, KINDS, PART, type PublishedPart, type RestoreResult, RestoreWords, WORD } from './restore-channel.ts';

/** The engine's end. Only the engine thread of the session uses it. */
export class RestoreAsker extends RestoreWords {
  #seen = this.load(WORD.partTail);

  /** True when the worker has ended the last request and every part of it was released. */
  get idle(): boolean {
    if (this.load(WORD.ended) !== this.load(WORD.request)) return false;
    for (let counter = this.load(WORD.partHead); counter !== this.load(WORD.partTail); counter = (counter + 1) | 0)
      if (Atomics.load(this.words, this.slotAt(counter) + PART.released) === 0) return false;
    return true;
  }

  get indexUsable(): boolean {
    return this.load(WORD.indexUsable) === 1;
  }

  /** Largest request that fits now. */
  get room(): number {
    return this.capacity;
  }

  /** Publishes a request; the channel must be idle. Returns its number. Ring the worker's bell after it. */
  post(request: Uint8Array): number {
    new Uint8Array(this.memory, DATA_AT, request.length).set(request);
    this.#seen = this.load(WORD.partTail);
    Atomics.store(this.words, WORD.requestBytes, request.length);
    const number = (this.load(WORD.request) % 0x3fffffff) + 1;
    Atomics.store(this.words, WORD.request, number);
    return number;
  }

  /** Read before looking for parts and result; `sleep` returns at once when something was published since. */
  signal(): number {
    return this.load(WORD.signal);
  }

  sleep(signal: number, ms: number): void {
    waitForRestore(this.words, signal, ms);
  }

  /** The next part nobody has taken yet. */
  take(): PublishedPart | null {
    if (this.#seen === this.load(WORD.partTail)) return null;
    const slot = this.slotAt(this.#seen);
    this.#seen = (this.#seen + 1) | 0;
    const word = (field: number) => this.words[slot + field]!;
    const bytes = new Uint8Array(this.memory, word(PART.offset) >>> 0, word(PART.length) >>> 0);
    return { part: KINDS[word(PART.kind)]!, blockIndex: word(PART.blockIndex), start: word(PART.start), end: word(PART.end), slot, bytes };
  }

  /** The bytes were copied: the worker may use their place again. Ring the worker's bell after it. */
  release(slot: number): void {
    Atomics.store(this.words, slot + PART.released, 1);
  }

  /** Releases everything published and not taken (cancelled, or not needed any more). */
  releaseRest(): void {
    for (let part = this.take(); part !== null; part = this.take()) this.release(part.slot);
  }

  /** The result of request `number` once the worker has ended it. Look for parts first: they are published before. */
  result(number: number): RestoreResult | null {
    if (this.load(WORD.ended) !== number) return null;
    const reason = this.load(WORD.resultReason);
    const detail = new TextDecoder().decode(new Uint8Array(this.memory, DETAIL_AT, this.load(WORD.detailBytes)).slice());
    return { tokenCount: this.load(WORD.resultTokens), reason: reason === 0 ? null : MISS_REASONS[reason - 1]!, detail };
  }

  cancel(number: number): void {
    Atomics.store(this.words, WORD.cancel, number);
  }
}

/** Named, so that a profile tells this wait from work. */
function waitForRestore(words: Int32Array, signal: number, ms: number): void {
  Atomics.wait(words, WORD.signal, signal, ms);
}
