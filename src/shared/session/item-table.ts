/**
 * The records of queue items: what is in the arena, for whom, and how far it got.
 *
 * Every word but DECISION and LEASE is guarded by `pending` (a unit's step from queued to taken needs no lock: its one consumer
 * makes it). An item is used again under a new generation; descriptors in rings, cancel marks and registry records name item and
 * generation, so that a late one never hits the next user.
 *
 * STATE, and who may move it:
 *   free → filling (producer) → queued (producer) → taken (writer or store worker) → free
 *   queued → spent (whoever cancels it: its bytes are given back, its descriptor is still in the ring) → free (consumer)
 *
 * DECISION settles who ends an item, by compare-and-swap from `waiting`, under no lock:
 *   publishing  the consumer, right before the rename; from then on the file appears
 *   abandoned   a saver whose limit passed; the consumer removes its temporary file
 *   cancelled   a cleanup; the same
 */
import { KEY_WORDS, keyIsAt, type RequestKey } from './request-key.ts';

export const STATE = { free: 0, filling: 1, queued: 2, taken: 3, spent: 4 } as const;
export const DECISION = { waiting: 0, publishing: 1, abandoned: 2, cancelled: 3 } as const;
export const KIND = { state: 0, unit: 1 } as const;
/** How an item that somebody waits for has ended. */
export const RESULT = { none: 0, written: 1, failed: 2, dropped: 3 } as const;

export const FLAG = {
  /** Its saver waits for RESULT and frees the item. */
  awaited: 1,
  /** Its bytes go back when the last reader leaves. */
  bytesDue: 2,
  /** It becomes free when the last reader leaves. */
  freeDue: 4,
  /** A unit whose state lies in a staged file. */
  hasState: 8,
  /** A unit whose request has ended: its staged file is cleaned when the unit is done. */
  requestEnded: 16,
  /** The bytes lie in a buffer of their own (`OversizeBuffers`), not in pages. */
  oversize: 32,
  /** Its saver writes it itself, under `writerBusy` (overflow policy 'inline'). */
  inline: 64,
} as const;

/** Offsets in a record. Byte counts take two words, low first. */
export const ITEM = {
  state: 0,
  generation: 1,
  decision: 2,
  /** Generation that a cleanup has cancelled; guarded by `cancelled` as well. */
  cancelledGeneration: 3,
  readers: 4,
  /** 1 while the item is the pending entry of its boundary. */
  visible: 5,
  kind: 6,
  flags: 7,
  requestNo: 8,
  tokenCount: 9,
  byteLength: 10,
  firstPage: 12,
  pageCount: 13,
  result: 14,
  errno: 15, // interned name
  charged: 16,
  /** Of a leased item whose bytes are not in its pages yet: the lease. See leases.ts. */
  lease: 18,
  key: 24,
  block: 32,
} as const;
const RECORD = 40;

/** Before the records: the last generation given out. One count for all items, so that a generation alone names one use. */
const HEADER = 16;

export class ItemTable {
  readonly words: Int32Array;
  readonly count: number;

  static wordsFor(count: number): number {
    return HEADER + count * RECORD;
  }

  constructor(words: Int32Array, count: number) {
    this.words = words;
    this.count = count;
  }

  get(item: number, field: number): number {
    return Atomics.load(this.words, at(item) + field);
  }

  set(item: number, field: number, value: number): void {
    Atomics.store(this.words, at(item) + field, value);
  }

  /** Byte counts: exact up to 2^53. */
  getBytes(item: number, field: number): number {
    const offset = at(item) + field;
    return (this.words[offset]! >>> 0) + this.words[offset + 1]! * 2 ** 32;
  }

  setBytes(item: number, field: number, value: number): void {
    const offset = at(item) + field;
    this.words[offset] = (value % 2 ** 32) | 0;
    this.words[offset + 1] = Math.floor(value / 2 ** 32);
  }

  has(item: number, flag: number): boolean {
    return (this.get(item, ITEM.flags) & flag) !== 0;
  }

  raise(item: number, flag: number): void {
    this.set(item, ITEM.flags, this.get(item, ITEM.flags) | flag);
  }

  clear(item: number, flag: number): void {
    this.set(item, ITEM.flags, this.get(item, ITEM.flags) & ~flag);
  }

  /** Moves DECISION away from `waiting`; false when somebody else did. No lock. */
  decide(item: number, decision: number): boolean {
    return Atomics.compareExchange(this.words, at(item) + ITEM.decision, DECISION.waiting, decision) === DECISION.waiting;
  }

  /** Whether `item` is still the one of that generation. */
  is(item: number, generation: number): boolean {
    return item >= 0 && item < this.count && this.get(item, ITEM.generation) === generation && this.get(item, ITEM.state) !== STATE.free;
  }

  /** Handed over, and not ended. A place that is only taken, to be filled, is not. */
  isAccepted(item: number): boolean {
    const state = this.get(item, ITEM.state);
    return state !== STATE.free && state !== STATE.filling;
  }

  isCancelled(item: number): boolean {
    return this.get(item, ITEM.cancelledGeneration) === this.get(item, ITEM.generation);
  }

  setKey(item: number, key: RequestKey): void {
    this.words.set(key, at(item) + ITEM.key);
  }

  keyOf(item: number): RequestKey {
    const offset = at(item) + ITEM.key;
    return this.words.slice(offset, offset + KEY_WORDS);
  }

  hasKey(item: number, key: RequestKey): boolean {
    return keyIsAt(this.words, at(item) + ITEM.key, key);
  }

  setBlock(item: number, hash: Int32Array): void {
    this.words.set(hash, at(item) + ITEM.block);
  }

  blockOf(item: number): Int32Array {
    const offset = at(item) + ITEM.block;
    return this.words.slice(offset, offset + KEY_WORDS);
  }

  /** A free item in [from, to) as `filling` under a new generation with empty fields, or -1. */
  claim(from: number, to: number, kind: number): number {
    for (let item = from; item < to; item++) {
      if (this.get(item, ITEM.state) !== STATE.free) continue;
      // 30 bits: never 0, so that an empty cancel mark matches no item.
      const generation = (this.words[0]! % 0x3fffffff) + 1;
      this.words[0] = generation;
      const record = at(item);
      this.words.fill(0, record, record + RECORD);
      this.words[record + ITEM.firstPage] = -1;
      this.words[record + ITEM.kind] = kind;
      this.words[record + ITEM.generation] = generation;
      this.set(item, ITEM.state, STATE.filling);
      return item;
    }
    return -1;
  }

  /** The pending entry of a boundary, or -1. */
  findVisible(key: RequestKey, tokenCount: number): number {
    // Written out: this runs cold, where each call costs more than what it does.
    const { words, count } = this;
    for (let item = 0, record = HEADER; item < count; item++, record += RECORD) {
      if (words[record + ITEM.visible] === 1 && words[record + ITEM.tokenCount] === tokenCount && this.hasKey(item, key)) return item;
    }
    return -1;
  }
}

function at(item: number): number {
  return HEADER + item * RECORD;
}
