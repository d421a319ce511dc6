/**
 * The restore region of a session: how one engine thread asks for a stored prefix and gets verified bytes, with nothing but
 * shared memory in between, so that it works while the engine sits in `Atomics.wait` and over a replacement of the worker.
 *
 * One request at a time. The engine (restore-asker.ts) writes the request into the data area, then publishes its number in
 * `request` and rings the store worker (restore-giver.ts). From then on the data area is the worker's: it puts one verified
 * file after the other there, publishes a part descriptor for each and bumps `signal`; the engine sets a part's `released`
 * word when it has copied it. Parts are reclaimed in order. The request is over when `ended` carries its number; `cancel` with
 * its number asks the worker to end it. Only then, with all parts released, may the engine write the next request.
 *
 * The memory is growable: when a file is larger than the region, the worker grows it, which every thread sees at once and
 * no message has to announce. Views are made with explicit lengths (length-tracking views are 70 times slower).
 */
import { type MissReason, TidemarkError } from '../errors.ts';
import type { BlockPart } from '../layer-state.ts';

const MAGIC_VALUE = 0x544d5231; // 'TMR1'

export const WORD = {
  magic: 0,
  /** Bumped by the worker with whatever it publishes; the engine sleeps on it. */
  signal: 1,
  request: 2,
  requestBytes: 3,
  cancel: 4,
  ended: 5,
  resultTokens: 6,
  /** 1 + index in MISS_REASONS; 0 for none. */
  resultReason: 7,
  detailBytes: 8,
  /** Parts published in all, and parts whose descriptor may be used again. */
  partTail: 9,
  partHead: 10,
  /** 1 while engines may trust the index on disk. */
  indexUsable: 11,
  /** Number of the request that a worker has begun. */
  begun: 12,
} as const;

const PARTS_AT = 64;
const PART_WORDS = 8;
export const PART_SLOTS = 64;
export const PART = { kind: 0, blockIndex: 1, start: 2, end: 3, offset: 4, length: 5, released: 6 } as const;
export const DETAIL_AT = (PARTS_AT + PART_SLOTS * PART_WORDS) * 4;
export const DETAIL_MAX = 1024;
export const DATA_AT = 4096;
const WORDS = DATA_AT / 4;
export const KINDS: readonly BlockPart[] = ['kv', 'state'];

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
  Atomics.store(new Int32Array(memory, 0, WORDS), WORD.magic, MAGIC_VALUE);
  return memory;
}

/** What both ends read. */
export class RestoreWords {
  protected readonly memory: SharedArrayBuffer;
  protected readonly words: Int32Array;

  constructor(memory: SharedArrayBuffer) {
    if (memory.byteLength < DATA_AT || new Int32Array(memory, 0, 1)[WORD.magic] !== MAGIC_VALUE)
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
