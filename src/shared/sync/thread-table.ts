/**
 * Who exists in this process and what each thread does, in shared memory: one table per process, 64 slots.
 *
 * Every word is written by the slot's own thread, except STATE, which the native core (when the thread's environment ends)
 * or the parent (on 'exit') sets too. Readers take no lock: each word is consistent by itself, and the detail text is
 * guarded by a sequence word that is odd while it is being written.
 *
 * A thread ends in two moments. ENDING: its JavaScript is over, whoever waits for its locks waits in vain. DEAD: what it had
 * in flight is drained and dropped too; only then may its process-wide locks be taken over and its slot be used again.
 * Generations tell the lives of a slot apart.
 */
import { isMainThread, threadId } from 'node:worker_threads';
import { TidemarkError } from '../errors.ts';
import { now } from './clock.ts';
import { deathWords } from './death-word.ts';
import type { LockSpec } from './ranks.ts';
import { StringTable } from './strings.ts';
import type { TransitionKind } from './transitions.ts';
import { TransitionLog } from './transitions.ts';

export const THREAD_KINDS = ['main', 'keeper', 'engine', 'store-worker', 'snapshot-writer', 'other'] as const;
export type ThreadKind = (typeof THREAD_KINDS)[number];

export const ACTIVITIES = ['idle', 'job', 'lock', 'stream', 'condition', 'file', 'native', 'load'] as const;
export type Activity = (typeof ACTIVITIES)[number];

/** How long an activity is normal when its thread does not say. */
export const DEFAULT_NORMAL_MS = 2000;

const MAGIC = 0x544d5431; // 'TMT1'
const SLOTS = 64;
const HEADER_WORDS = 32;
const SLOT_WORDS = 64;

// header
const H_MAGIC = 0;
const H_NEXT_LOCK = 1;
const H_RANK_VIOLATIONS = 2;
const H_BASE = 4; // float64: what `ms()` counts from

// slot
const STATE = 0;
const GENERATION = 1;
const KIND = 2;
const NAME = 3;
const ACTIVITY = 4;
const ACTIVITY_SINCE = 5;
const NORMAL_MS = 6; // -1: for ever
const HEARTBEAT = 7;
const DETAIL_SEQ = 8;
const DETAIL_BYTES = 9;
const WAIT_KIND = 10; // 0 none, 1 lock, 2 condition
const WAIT_ID = 11;
const WAIT_NAME = 12;
const WAIT_SITE = 13;
const WAIT_SINCE = 14;
const DEPENDS_ON = 15; // slot + 1 of the thread that the current activity waits for, 0: none
const THREAD_ID = 16;
const OS_THREAD_ID = 17;
const ACTIVITY_COUNT = 18;
const WAIT_COUNT = 19;
const DETAIL = 24;
const DETAIL_MAX = (SLOT_WORDS - DETAIL) * 4;

const FREE = 0;
const ALIVE = 1;
const DEAD = 2;
const CLAIMED = 3;
const ENDING = 4;

/** A token names one life of one slot; lock words hold it. Fits 28 bits, never 0. */
const TOKEN_GENERATIONS = (1 << 22) - 1;

export interface ThreadWait {
  readonly kind: 'lock' | 'condition';
  readonly id: number;
  readonly name: string;
  readonly site: string;
  readonly sinceMs: number;
}

export interface ThreadInfo {
  readonly slot: number;
  readonly generation: number;
  readonly token: number;
  readonly state: 'free' | 'alive' | 'ending' | 'dead';
  readonly kind: ThreadKind;
  readonly name: string;
  readonly activity: Activity;
  readonly detail: string;
  /** How long the activity lasts. */
  readonly sinceMs: number;
  /** How much longer than normal it lasts; 0 while it is normal. */
  readonly overdueMs: number;
  readonly heartbeatAgeMs: number;
  readonly wait: ThreadWait | null;
  /** Slot of the thread that the activity waits for. */
  readonly dependsOn: number | null;
  readonly threadId: number;
  readonly osThreadId: number;
  /** Change with each activity and each wait: two reads with equal stamps saw the same one. */
  readonly activityStamp: number;
  readonly waitStamp: number;
}

export interface EnterOptions {
  /** Whether this thread may block. Default: every thread but the app's main thread. Test doubles set it. */
  readonly mayBlock?: boolean;
}

/** A lock that the thread holds, for rank checks. */
export interface HeldLock {
  readonly spec: LockSpec;
}

/** One thread's own entry. Made by the thread itself; not shared with others. */
export interface ThreadHandle {
  readonly slot: number;
  readonly token: number;
  readonly table: ThreadTable;
  readonly mayBlock: boolean;
  /** Rank checks throw (development, test) or are counted (production). */
  readonly strict: boolean;
  /** Locks held by this thread, in order of acquisition. */
  readonly held: HeldLock[];
  /** Says what the thread does now, and for how long that is normal (default 2 s). `dependsOn`: slot of the thread it waits for. */
  activity(kind: Activity, detail?: string, normalForMs?: number, dependsOn?: number): void;
  idle(): void;
  beat(): void;
  /** Marks a wait for a lock or condition, shown above the activity until `endWait`. Names and sites are interned ids. */
  beginWait(kind: 'lock' | 'condition', id: number, name: number, site: number): void;
  endWait(): void;
  /** Adds to the last transitions. `ms`: the time, when the caller has just read the clock. */
  log(what: TransitionKind, subject: number, site: number, ms?: number): void;
  /** The thread's last act towards the table: what it held is abandoned. */
  leave(): void;
}

export class ThreadTable {
  static readonly SLOTS = SLOTS;
  static readonly BYTES = (HEADER_WORDS + SLOTS * SLOT_WORDS + StringTable.WORDS + TransitionLog.WORDS) * 4;

  readonly buffer: SharedArrayBuffer;
  readonly words: Int32Array;
  readonly strings: StringTable;
  readonly transitions: TransitionLog;
  readonly #base: number;
  readonly #bytes: Buffer;

  static create(): SharedArrayBuffer {
    const buffer = new SharedArrayBuffer(ThreadTable.BYTES);
    new Float64Array(buffer, H_BASE * 4, 1)[0] = now();
    Atomics.store(new Int32Array(buffer), H_MAGIC, MAGIC);
    return buffer;
  }

  constructor(buffer: SharedArrayBuffer) {
    if (buffer.byteLength < ThreadTable.BYTES || new Int32Array(buffer, 0, 1)[0] !== MAGIC) {
      throw new TidemarkError('INVALID_ARGUMENT', 'This SharedArrayBuffer is not a thread table; make one with ThreadTable.create().');
    }
    this.buffer = buffer;
    this.words = new Int32Array(buffer, 0, HEADER_WORDS + SLOTS * SLOT_WORDS);
    this.#base = new Float64Array(buffer, H_BASE * 4, 1)[0]!;
    this.#bytes = Buffer.from(buffer as unknown as ArrayBuffer);
    let at = (HEADER_WORDS + SLOTS * SLOT_WORDS) * 4;
    this.strings = new StringTable(new Int32Array(buffer, at, StringTable.WORDS));
    at += StringTable.WORDS * 4;
    this.transitions = new TransitionLog(new Int32Array(buffer, at, TransitionLog.WORDS));
  }

  /** Milliseconds since the table was made, as a word: one atomic store, no torn reads. `at` is a reading of `now()`. Differences are right for 49 days. */
  ms(at: number = now()): number {
    return (at - this.#base) | 0;
  }

  /** How long ago a word written with `ms()` was. */
  since(word: number): number {
    return (this.ms() - word) >>> 0;
  }

  nextLockId(): number {
    return Atomics.add(this.words, H_NEXT_LOCK, 1) + 1;
  }

  countRankViolation(): void {
    Atomics.add(this.words, H_RANK_VIOLATIONS, 1);
  }

  get rankViolations(): number {
    return Atomics.load(this.words, H_RANK_VIOLATIONS);
  }

  /** Claims a slot for the calling thread and, if the native core is loaded, has it marked dead when the thread ends. */
  enter(kind: ThreadKind, name: string, options: EnterOptions = {}): ThreadHandle {
    const at = this.#claim();
    const words = this.words;
    const generation = (words[at + GENERATION]! % TOKEN_GENERATIONS) + 1;
    words[at + GENERATION] = generation;
    words[at + KIND] = THREAD_KINDS.indexOf(kind);
    words[at + NAME] = this.strings.intern(name);
    words[at + THREAD_ID] = threadId;
    words[at + OS_THREAD_ID] = deathWords()?.threadId?.() ?? 0;
    words[at + WAIT_KIND] = 0;
    const slot = (at - HEADER_WORDS) / SLOT_WORDS;
    const handle = new Handle(this, at, slot, tokenOf(slot, generation), options.mayBlock ?? !isMainThread);
    handle.idle();
    Atomics.store(words, at + STATE, ALIVE);
    deathWords()?.deathWord(words, at + STATE, ENDING, 'ending');
    deathWords()?.deathWord(words, at + STATE, DEAD, 'ended');
    handle.log('enters', words[at + NAME]!, 0);
    return handle;
  }

  /** Never used slots first, so that the dead stay readable as long as possible. */
  #claim(): number {
    for (const wanted of [FREE, DEAD]) {
      for (let slot = 0; slot < SLOTS; slot++) {
        const at = HEADER_WORDS + slot * SLOT_WORDS;
        if (Atomics.load(this.words, at + STATE) === wanted && Atomics.compareExchange(this.words, at + STATE, wanted, CLAIMED) === wanted) return at;
      }
    }
    throw new TidemarkError('THREAD_TABLE_FULL', `All ${SLOTS} thread slots of this process are in use; close engines that are no longer needed.`);
  }

  /** Marks a thread dead from outside: a parent calls it when its worker has ended. `token` guards against a later life of the slot. */
  markDead(slot: number, token?: number): void {
    const at = HEADER_WORDS + slot * SLOT_WORDS;
    const words = this.words;
    if (token !== undefined && tokenOf(slot, Atomics.load(words, at + GENERATION)) !== token) return;
    const state = Atomics.load(words, at + STATE);
    if ((state !== ALIVE && state !== ENDING) || Atomics.compareExchange(words, at + STATE, state, DEAD) !== state) return;
    this.transitions.add(this.ms(), slot, 'dead', words[at + NAME]!, 0);
  }

  /** Marks every living thread whose worker_threads id is `id` dead (a parent knows its workers by this id). */
  markWorkerDead(id: number): void {
    for (let slot = 0; slot < SLOTS; slot++) {
      const at = HEADER_WORDS + slot * SLOT_WORDS;
      const state = Atomics.load(this.words, at + STATE);
      if ((state === ALIVE || state === ENDING) && this.words[at + THREAD_ID] === id) this.markDead(slot);
    }
  }

  /** Whether the life that `token` names is over, or about to be: its JavaScript runs no more. */
  isDead(token: number): boolean {
    const slot = slotOf(token);
    const at = HEADER_WORDS + slot * SLOT_WORDS;
    return Atomics.load(this.words, at + GENERATION) !== token >>> 6 || Atomics.load(this.words, at + STATE) !== ALIVE;
  }

  /** Whether that life is over and nothing of it is in flight any more. */
  isGone(token: number): boolean {
    const at = HEADER_WORDS + slotOf(token) * SLOT_WORDS;
    if (Atomics.load(this.words, at + GENERATION) !== token >>> 6) return true;
    const state = Atomics.load(this.words, at + STATE);
    return state !== ALIVE && state !== ENDING;
  }

  /** Name of the life that `token` names. */
  nameOf(token: number): string {
    const slot = slotOf(token);
    const at = HEADER_WORDS + slot * SLOT_WORDS;
    if (Atomics.load(this.words, at + GENERATION) !== token >>> 6) return `thread slot ${slot}, gone`;
    return this.strings.read(this.words[at + NAME]!);
  }

  read(slot: number): ThreadInfo {
    const at = HEADER_WORDS + slot * SLOT_WORDS;
    const words = this.words;
    const state = Atomics.load(words, at + STATE);
    const sinceMs = this.since(Atomics.load(words, at + ACTIVITY_SINCE));
    const normal = words[at + NORMAL_MS]!;
    const waitKind = Atomics.load(words, at + WAIT_KIND);
    const generation = words[at + GENERATION]!;
    return {
      slot,
      generation,
      token: tokenOf(slot, generation),
      state: state === ALIVE ? 'alive' : state === DEAD ? 'dead' : state === ENDING ? 'ending' : 'free',
      kind: THREAD_KINDS[words[at + KIND]!] ?? 'other',
      name: this.strings.read(words[at + NAME]!),
      activity: ACTIVITIES[Atomics.load(words, at + ACTIVITY)] ?? 'idle',
      detail: this.#detail(at),
      sinceMs,
      overdueMs: normal < 0 ? 0 : Math.max(0, sinceMs - normal),
      heartbeatAgeMs: this.since(Atomics.load(words, at + HEARTBEAT)),
      wait:
        waitKind === 0
          ? null
          : {
              kind: waitKind === 1 ? 'lock' : 'condition',
              id: words[at + WAIT_ID]!,
              name: this.strings.read(words[at + WAIT_NAME]!),
              site: this.strings.read(words[at + WAIT_SITE]!),
              sinceMs: this.since(words[at + WAIT_SINCE]!),
            },
      dependsOn: words[at + DEPENDS_ON]! === 0 ? null : words[at + DEPENDS_ON]! - 1,
      threadId: words[at + THREAD_ID]!,
      osThreadId: words[at + OS_THREAD_ID]!,
      activityStamp: words[at + ACTIVITY_COUNT]!,
      waitStamp: words[at + WAIT_COUNT]!,
    };
  }

  /** All slots that were ever used, the dead included. */
  list(): ThreadInfo[] {
    const found: ThreadInfo[] = [];
    for (let slot = 0; slot < SLOTS; slot++) {
      const state = Atomics.load(this.words, HEADER_WORDS + slot * SLOT_WORDS + STATE);
      if (state !== FREE && state !== CLAIMED) found.push(this.read(slot));
    }
    return found;
  }

  #detail(at: number): string {
    const words = this.words;
    let text = '';
    // A writer that changes the text while it is read costs a retry; one that died in the middle costs a possibly mixed text.
    for (let tries = 0; tries < 4; tries++) {
      const seq = Atomics.load(words, at + DETAIL_SEQ);
      const start = (at + DETAIL) * 4;
      text = this.#bytes.toString('utf8', start, start + Math.min(words[at + DETAIL_BYTES]!, DETAIL_MAX));
      if ((seq & 1) === 0 && Atomics.load(words, at + DETAIL_SEQ) === seq) break;
    }
    return text;
  }

  /** @internal */
  writeDetail(at: number, text: string): void {
    const words = this.words;
    Atomics.add(words, at + DETAIL_SEQ, 1);
    words[at + DETAIL_BYTES] = this.#bytes.write(text, (at + DETAIL) * 4, DETAIL_MAX, 'utf8');
    Atomics.add(words, at + DETAIL_SEQ, 1);
  }
}

class Handle implements ThreadHandle {
  readonly table: ThreadTable;
  readonly slot: number;
  readonly token: number;
  readonly mayBlock: boolean;
  readonly strict = process.env.NODE_ENV !== 'production';
  readonly held: HeldLock[] = [];
  readonly #at: number;
  readonly #words: Int32Array;
  #detail = '';

  constructor(table: ThreadTable, at: number, slot: number, token: number, mayBlock: boolean) {
    this.table = table;
    this.slot = slot;
    this.token = token;
    this.mayBlock = mayBlock;
    this.#at = at;
    this.#words = table.words;
    table.writeDetail(at, '');
  }

  activity(kind: Activity, detail = '', normalForMs: number = DEFAULT_NORMAL_MS, dependsOn?: number): void {
    const words = this.#words;
    const at = this.#at;
    const ms = this.table.ms();
    if (detail !== this.#detail) {
      this.#detail = detail;
      this.table.writeDetail(at, detail);
    }
    words[at + DEPENDS_ON] = dependsOn === undefined ? 0 : dependsOn + 1;
    words[at + NORMAL_MS] = Number.isFinite(normalForMs) ? Math.min(normalForMs, 0x7fffffff) | 0 : -1;
    words[at + ACTIVITY_COUNT]!++;
    Atomics.store(words, at + ACTIVITY_SINCE, ms);
    Atomics.store(words, at + ACTIVITY, ACTIVITIES.indexOf(kind));
    Atomics.store(words, at + HEARTBEAT, ms);
  }

  idle(): void {
    this.activity('idle', '', Number.POSITIVE_INFINITY);
  }

  beat(): void {
    Atomics.store(this.#words, this.#at + HEARTBEAT, this.table.ms());
  }

  beginWait(kind: 'lock' | 'condition', id: number, name: number, site: number): void {
    const words = this.#words;
    const at = this.#at;
    words[at + WAIT_ID] = id;
    words[at + WAIT_NAME] = name;
    words[at + WAIT_SITE] = site;
    words[at + WAIT_COUNT]!++;
    words[at + WAIT_SINCE] = this.table.ms();
    Atomics.store(words, at + WAIT_KIND, kind === 'lock' ? 1 : 2);
    this.log('waits', name, site);
  }

  endWait(): void {
    Atomics.store(this.#words, this.#at + WAIT_KIND, 0);
  }

  log(what: TransitionKind, subject: number, site: number, ms: number = this.table.ms()): void {
    this.table.transitions.add(ms, this.slot, what, subject, site);
  }

  leave(): void {
    this.log('leaves', this.#words[this.#at + NAME]!, 0);
    // First: a word written at the end of the environment must not hit the slot's next user.
    deathWords()?.cancelDeathWord(this.#words, this.#at + STATE);
    Atomics.compareExchange(this.#words, this.#at + STATE, ALIVE, DEAD);
  }
}

function tokenOf(slot: number, generation: number): number {
  return (generation << 6) | slot;
}

export function slotOf(token: number): number {
  return token & (SLOTS - 1);
}
