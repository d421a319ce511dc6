/**
 * Named locks and conditions in one run of words, and how to read them from outside.
 *
 * A table is described by a list of specs; the order fixes the offsets, so every thread that has the words and the list
 * agrees. Reading takes no lock: each figure is one word.
 */
import { CONDITION, CONDITION_LONGEST_WAIT_US, Condition } from './condition.ts';
import { DEPTH, ID, KIND, LONGEST_HOLD_US, LONGEST_WAIT_US, REENTRANT, SINCE, SITE, TAKEOVERS, TIMEOUTS } from './lock.ts';
import { ownerOf } from './lock-word.ts';
import { TimedMutex } from './mutex.ts';
import type { LockSpec } from './ranks.ts';
import { ReentrantLock } from './reentrant.ts';
import type { ThreadHandle, ThreadTable } from './thread-table.ts';
import { slotOf } from './thread-table.ts';

export interface TableSpec extends LockSpec {
  readonly kind?: 'mutex' | 'reentrant';
  /** Names of conditions that belong to this lock. */
  readonly conditions?: readonly string[];
}

export interface LockInfo {
  readonly id: number;
  readonly name: string;
  readonly kind: 'mutex' | 'reentrant' | 'condition';
  readonly rank: number;
  readonly held: boolean;
  /** Slot of the owner; null when free. */
  readonly ownerSlot: number | null;
  readonly owner: string | null;
  /** Names the life of the owner's slot; 0 when free. */
  readonly ownerToken: number;
  readonly ownerDead: boolean;
  readonly depth: number;
  /** Where the present owner took it, or the last one. */
  readonly site: string;
  /** How long it is held. */
  readonly sinceMs: number;
  readonly waiters: number;
  readonly longestHoldMs: number;
  readonly longestWaitMs: number;
  readonly timeouts: number;
  readonly takeovers: number;
}

interface Entry {
  readonly name: string;
  readonly at: number;
  readonly spec: TableSpec;
  readonly condition: boolean;
}

export class LockTable {
  readonly words: Int32Array;
  readonly #entries: Entry[] = [];

  static wordsFor(specs: readonly TableSpec[]): number {
    return specs.reduce((sum, spec) => sum + TimedMutex.WORDS + Condition.WORDS * (spec.conditions?.length ?? 0), 0);
  }

  /** `words` holds `wordsFor(specs)` zeroed words from `at` on. */
  constructor(words: Int32Array, at: number, specs: readonly TableSpec[]) {
    this.words = words;
    let next = at;
    for (const spec of specs) {
      this.#entries.push({ name: spec.name, at: next, spec, condition: false });
      next += TimedMutex.WORDS;
      for (const name of spec.conditions ?? []) {
        this.#entries.push({ name, at: next, spec, condition: true });
        next += Condition.WORDS;
      }
    }
  }

  /** First word of a lock or condition. */
  offset(name: string): number {
    return this.#find(name).at;
  }

  mutex(name: string, self: ThreadHandle): TimedMutex {
    const { at, spec } = this.#find(name);
    return new TimedMutex(this.words, at, spec, self);
  }

  reentrant(name: string, self: ThreadHandle): ReentrantLock {
    const { at, spec } = this.#find(name);
    return new ReentrantLock(this.words, at, spec, self);
  }

  /** `mutex` is this thread's object of the lock that the condition belongs to. */
  condition(name: string, mutex: TimedMutex | ReentrantLock): Condition {
    return new Condition(this.words, this.#find(name).at, mutex, name);
  }

  #find(name: string): Entry {
    const entry = this.#entries.find((e) => e.name === name);
    if (entry === undefined) throw new RangeError(`no lock '${name}' in this table`);
    return entry;
  }

  /** `readAll` by the name that `diagnose()` asks for. */
  readLocks(threads: ThreadTable): LockInfo[] {
    return this.readAll(threads);
  }

  /** What every lock and condition is at this moment. Takes no lock. */
  readAll(threads: ThreadTable): LockInfo[] {
    const waiting = new Map<number, number>();
    for (const { state, wait } of threads.list()) if (state === 'alive' && wait !== null) waiting.set(wait.id, (waiting.get(wait.id) ?? 0) + 1);
    return this.#entries.map((entry) => readLock(this.words, entry, threads, waiting));
  }
}

function readLock(words: Int32Array, entry: Entry, threads: ThreadTable, waiting: ReadonlyMap<number, number>): LockInfo {
  const { at, name, spec } = entry;
  const id = Atomics.load(words, at + ID);
  const token = entry.condition ? 0 : ownerOf(words, at);
  const kind = words[at + KIND];
  return {
    id,
    name,
    kind: kind === CONDITION || entry.condition ? 'condition' : kind === REENTRANT ? 'reentrant' : 'mutex',
    rank: spec.rank,
    held: token !== 0,
    ownerSlot: token === 0 ? null : slotOf(token),
    owner: token === 0 ? null : threads.nameOf(token),
    ownerToken: token,
    ownerDead: token !== 0 && threads.isDead(token),
    depth: token === 0 ? 0 : Math.max(1, words[at + DEPTH]!),
    site: entry.condition ? '' : threads.strings.read(words[at + SITE]!),
    sinceMs: token === 0 ? 0 : threads.since(words[at + SINCE]!),
    waiters: waiting.get(id) ?? 0,
    longestHoldMs: entry.condition ? 0 : words[at + LONGEST_HOLD_US]! / 1000,
    longestWaitMs: words[at + (entry.condition ? CONDITION_LONGEST_WAIT_US : LONGEST_WAIT_US)]! / 1000,
    timeouts: entry.condition ? 0 : words[at + TIMEOUTS]!,
    takeovers: entry.condition ? 0 : words[at + TAKEOVERS]!,
  };
}
