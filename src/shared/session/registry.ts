/**
 * Which boundary has a staged file, or is about to get one. Guarded by `registry`.
 *
 * One record per boundary (request key, token count), from its publication until its file is taken or removed:
 *   pending    its item is in the writer's queue; `load` is served from memory, `oldFile` says that an earlier file lies there
 *   file       the file is on disk
 *   detaching  somebody renames it out of staging, without the lock; cleanup leaves it alone, and notes in `forgotten` that it came
 *   condemned  nobody knows it any more; its file waits for its removal by a holder of `writerBusy`
 * Every file in staging has a record, so whatever is cleaned, cancelled or left behind is found here. The table is small and
 * lies in one run, so looking through it costs less than a hash table would save.
 */
import { KEY_WORDS, keyIsAt, type RequestKey } from './request-key.ts';

export const FILE_STATE = { none: 0, pending: 1, file: 2, detaching: 3, condemned: 4 } as const;

/** Offsets in a record. */
export const RECORD = { state: 0, generation: 1, tokenCount: 2, requestNo: 3, oldFile: 4, detacher: 5, removeFailed: 6, forgotten: 7, key: 8 } as const;
const RECORD_WORDS = 16;

const LIVE = 0; // records in use
const HIGH = 1; // no record in use at or above
const HEADER = 16;

export interface FileRecord {
  readonly index: number;
  readonly state: number;
  readonly generation: number;
  readonly tokenCount: number;
  readonly requestNo: number;
  readonly key: RequestKey;
}

export class Registry {
  readonly capacity: number;
  readonly #words: Int32Array;

  static wordsFor(capacity: number): number {
    return HEADER + capacity * RECORD_WORDS;
  }

  constructor(words: Int32Array, capacity: number) {
    this.#words = words;
    this.capacity = capacity;
  }

  /** Records in use; a moment's figure without the lock. */
  get live(): number {
    return Atomics.load(this.#words, LIVE);
  }

  get(index: number, field: number): number {
    return this.#words[HEADER + index * RECORD_WORDS + field]!;
  }

  set(index: number, field: number, value: number): void {
    this.#words[HEADER + index * RECORD_WORDS + field] = value;
  }

  read(index: number): FileRecord {
    const at = HEADER + index * RECORD_WORDS;
    const words = this.#words;
    return {
      index,
      state: words[at + RECORD.state]!,
      generation: words[at + RECORD.generation]!,
      tokenCount: words[at + RECORD.tokenCount]!,
      requestNo: words[at + RECORD.requestNo]!,
      key: words.slice(at + RECORD.key, at + RECORD.key + KEY_WORDS),
    };
  }

  find(key: RequestKey, tokenCount: number): number {
    const words = this.#words;
    const high = words[HIGH]!;
    for (let index = 0; index < high; index++) {
      const at = HEADER + index * RECORD_WORDS;
      if (words[at + RECORD.tokenCount] === tokenCount && words[at + RECORD.state] !== FILE_STATE.none && keyIsAt(words, at + RECORD.key, key)) return index;
    }
    return -1;
  }

  /** Indexes of a request's records, or of all (`key` null). */
  recordsOf(key: RequestKey | null): number[] {
    const words = this.#words;
    const found: number[] = [];
    for (let index = 0; index < words[HIGH]!; index++) {
      const at = HEADER + index * RECORD_WORDS;
      if (words[at + RECORD.state] !== FILE_STATE.none && (key === null || keyIsAt(words, at + RECORD.key, key))) found.push(index);
    }
    return found;
  }

  /** A new record, or -1 when the table is full. */
  insert(key: RequestKey, tokenCount: number, generation: number, requestNo: number): number {
    const words = this.#words;
    if (words[LIVE]! >= this.capacity) return -1;
    let index = 0;
    while (words[HEADER + index * RECORD_WORDS + RECORD.state] !== FILE_STATE.none) index++;
    const at = HEADER + index * RECORD_WORDS;
    for (let word = 0; word < RECORD_WORDS; word++) words[at + word] = 0;
    words[at + RECORD.generation] = generation;
    words[at + RECORD.tokenCount] = tokenCount;
    words[at + RECORD.requestNo] = requestNo;
    for (let word = 0; word < KEY_WORDS; word++) words[at + RECORD.key + word] = key[word]!;
    words[at + RECORD.state] = FILE_STATE.pending;
    Atomics.add(words, LIVE, 1);
    if (index >= words[HIGH]!) words[HIGH] = index + 1;
    return index;
  }

  remove(index: number): void {
    const words = this.#words;
    words[HEADER + index * RECORD_WORDS + RECORD.state] = FILE_STATE.none;
    Atomics.sub(words, LIVE, 1);
    while (words[HIGH]! > 0 && words[HEADER + (words[HIGH]! - 1) * RECORD_WORDS + RECORD.state] === FILE_STATE.none) words[HIGH]!--;
  }
}
