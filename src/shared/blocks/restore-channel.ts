/**
 * The restore region of a session: how one engine thread asks for a stored prefix and gets verified bytes, with nothing but
 * shared memory in between, so that it works while the engine sits in `Atomics.wait` and over a replacement of the worker.
 *
 * One request at a time. The engine writes the request into the data area, then publishes its number in REQUEST and rings
 * the store worker. From then on the data area is the worker's: it puts one verified file after the other there, publishes a
 * part descriptor for each and bumps SIGNAL; the engine sets a part's RELEASED word when it has copied it. Parts are
 * reclaimed in order. The request is over when ENDED carries its number; CANCEL with its number asks the worker to end it.
 * Only then, with all parts released, may the engine write the next request.
 *
 * The memory is growable: when a file is larger than the region, the worker grows it, which every thread sees at once and
 * no message has to announce. Views are made with explicit lengths (length-tracking views are 70 times slower).
 */
import { MISS_REASONS, type MissReason, TidemarkError } from '../errors.ts';
import type { BlockPart } from '../layer-state.ts';

const MAGIC_VALUE = 0x544d5231; // 'TMR1'
const MAGIC = 0;
/** Bumped by the worker with whatever it publishes; the engine sleeps on it. */
const SIGNAL = 1;
const REQUEST = 2;
const REQUEST_BYTES = 3;
const CANCEL = 4;
const ENDED = 5;
const RESULT_TOKENS = 6;
/** 1 + index in MISS_REASONS; 0 for none. */
const RESULT_REASON = 7;
const DETAIL_BYTES = 8;
/** Parts published in all, and parts whose descriptor may be used again. */
const PART_TAIL = 9;
const PART_HEAD = 10;
/** 1 while engines may trust the index on disk. */
const INDEX_USABLE = 11;
/** Number of the request that a worker has begun. */
const BEGUN = 12;

const PARTS_AT = 64;
const PART_WORDS = 8;
const PART_SLOTS = 64;
const PART = { kind: 0, blockIndex: 1, start: 2, end: 3, offset: 4, length: 5, released: 6 } as const;
const DETAIL_AT = (PARTS_AT + PART_SLOTS * PART_WORDS) * 4;
const DETAIL_MAX = 1024;
const DATA_AT = 4096;
const WORDS = DATA_AT / 4;
const KINDS: readonly BlockPart[] = ['kv', 'state'];

export const RESTORE_BYTES = 32 * 1024 * 1024;
/** Address space only; memory is used as far as files need it. One part stays below Node's 2 GiB for a read. */
export const RESTORE_MAX_BYTES = 2 ** 31 - 65536;

export interface PartPlace {
  readonly part: BlockPart;
  /** Position in the chain; several candidates for one tail have the same. */
  readonly blockIndex: number;
  readonly start: number;
  readonly end: number;
}

export interface PublishedPart extends PartPlace {
  readonly slot: number;
  readonly bytes: Uint8Array;
}

export interface RestoreResult {
  /** Tokens that may be taken over; 0 is a miss. */
  readonly tokenCount: number;
  readonly reason: MissReason | null;
  readonly detail: string;
}

/** Memory for one session. */
export function createRestoreMemory(bytes = RESTORE_BYTES, maxBytes = RESTORE_MAX_BYTES): SharedArrayBuffer {
  const memory = new SharedArrayBuffer(Math.max(bytes, DATA_AT * 2), { maxByteLength: Math.max(bytes, maxBytes, DATA_AT * 2) });
  Atomics.store(new Int32Array(memory, 0, WORDS), MAGIC, MAGIC_VALUE);
  return memory;
}

/** What both ends read. */
class RestoreWords {
  protected readonly memory: SharedArrayBuffer;
  protected readonly words: Int32Array;

  constructor(memory: SharedArrayBuffer) {
    if (memory.byteLength < DATA_AT || new Int32Array(memory, 0, 1)[MAGIC] !== MAGIC_VALUE)
      throw new TidemarkError('INVALID_ARGUMENT', 'this is no restore memory; make one with createRestoreMemory()');
    this.memory = memory;
    this.words = new Int32Array(memory, 0, WORDS);
  }

  protected load(word: number): number {
    return Atomics.load(this.words, word);
  }

  protected slotAt(counter: number): number {
    return PARTS_AT + ((counter >>> 0) % PART_SLOTS) * PART_WORDS;
  }

  protected get capacity(): number {
    return this.memory.byteLength - DATA_AT;
  }
}

/** The engine's end. Only the engine thread of the session uses it. */
export class RestoreAsker extends RestoreWords {
  #seen = this.load(PART_TAIL);

  /** True when the worker has ended the last request and every part of it was released. */
  get idle(): boolean {
    if (this.load(ENDED) !== this.load(REQUEST)) return false;
    for (let counter = this.load(PART_HEAD); counter !== this.load(PART_TAIL); counter = (counter + 1) | 0)
      if (Atomics.load(this.words, this.slotAt(counter) + PART.released) === 0) return false;
    return true;
  }

  get indexUsable(): boolean {
    return this.load(INDEX_USABLE) === 1;
  }

  /** Largest request that fits now. */
  get room(): number {
    return this.capacity;
  }

  /** Publishes a request; the channel must be idle. Returns its number. Ring the worker's bell after it. */
  post(request: Uint8Array): number {
    new Uint8Array(this.memory, DATA_AT, request.length).set(request);
    this.#seen = this.load(PART_TAIL);
    Atomics.store(this.words, REQUEST_BYTES, request.length);
    const number = (this.load(REQUEST) % 0x3fffffff) + 1;
    Atomics.store(this.words, REQUEST, number);
    return number;
  }

  /** Read before looking for parts and result; `sleep` returns at once when something was published since. */
  signal(): number {
    return this.load(SIGNAL);
  }

  sleep(signal: number, ms: number): void {
    waitForRestore(this.words, signal, ms);
  }

  /** The next part nobody has taken yet. */
  take(): PublishedPart | null {
    if (this.#seen === this.load(PART_TAIL)) return null;
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
    if (this.load(ENDED) !== number) return null;
    const reason = this.load(RESULT_REASON);
    const detail = new TextDecoder().decode(new Uint8Array(this.memory, DETAIL_AT, this.load(DETAIL_BYTES)).slice());
    return { tokenCount: this.load(RESULT_TOKENS), reason: reason === 0 ? null : MISS_REASONS[reason - 1]!, detail };
  }

  cancel(number: number): void {
    Atomics.store(this.words, CANCEL, number);
  }
}

/** Named, so that a profile tells this wait from work. */
function waitForRestore(words: Int32Array, signal: number, ms: number): void {
  Atomics.wait(words, SIGNAL, signal, ms);
}

interface Outstanding {
  readonly offset: number;
  readonly length: number;
}

/** The store worker's end. */
export class RestoreGiver extends RestoreWords {
  /** Places in the data area that are not reclaimed yet, oldest first; one for each descriptor from PART_HEAD on. */
  readonly #outstanding: Outstanding[] = [];
  #active = 0;

  /** A request that the former worker had begun can't be continued: it ends here, what it published stays until released. */
  abandonFormer(): void {
    const number = this.load(REQUEST);
    for (let counter = this.load(PART_HEAD); counter !== this.load(PART_TAIL); counter = (counter + 1) | 0) {
      const slot = this.slotAt(counter);
      this.#outstanding.push({ offset: this.words[slot + PART.offset]! >>> 0, length: this.words[slot + PART.length]! >>> 0 });
    }
    if (this.load(BEGUN) === number && this.load(ENDED) !== number)
      this.end(number, { tokenCount: 0, reason: 'worker', detail: 'the store worker was replaced' });
  }

  setIndexUsable(usable: boolean): void {
    Atomics.store(this.words, INDEX_USABLE, usable ? 1 : 0);
  }

  /** A new request's number and a private copy of its bytes, or null. */
  poll(): { number: number; request: Uint8Array } | null {
    const number = this.load(REQUEST);
    if (number === this.load(ENDED) || number === this.#active) return null;
    this.#active = number;
    Atomics.store(this.words, BEGUN, number);
    return { number, request: new Uint8Array(this.memory, DATA_AT, this.load(REQUEST_BYTES)).slice() };
  }

  isCancelled(number: number): boolean {
    return this.load(CANCEL) === number;
  }

  #reclaim(): void {
    while (this.#outstanding.length > 0 && Atomics.load(this.words, this.slotAt(this.load(PART_HEAD)) + PART.released) === 1) {
      this.#outstanding.shift();
      Atomics.store(this.words, PART_HEAD, (this.load(PART_HEAD) + 1) | 0);
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
    const tail = this.load(PART_TAIL);
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
    Atomics.store(words, PART_TAIL, (tail + 1) | 0);
    this.#notify();
  }

  end(number: number, result: RestoreResult): void {
    const detail = new TextEncoder().encode(result.detail).subarray(0, DETAIL_MAX);
    new Uint8Array(this.memory, DETAIL_AT, detail.length).set(detail);
    Atomics.store(this.words, DETAIL_BYTES, detail.length);
    Atomics.store(this.words, RESULT_TOKENS, result.tokenCount);
    Atomics.store(this.words, RESULT_REASON, result.reason === null ? 0 : MISS_REASONS.indexOf(result.reason) + 1);
    Atomics.store(this.words, ENDED, number);
    this.#active = 0;
    this.#notify();
  }

  #notify(): void {
    Atomics.add(this.words, SIGNAL, 1);
    Atomics.notify(this.words, SIGNAL);
  }
}
