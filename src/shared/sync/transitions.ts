/**
 * The last transitions of all threads: who acquired, released, waited for or gave up what. Written without a lock, read by
 * `diagnose()` at any moment. An entry that is being overwritten while it is read is left out (its sequence word changes).
 */
const ENTRIES = 256;
const ENTRY_WORDS = 8;
const SEQ = 0;
const AT_MS = 1;
const SLOT = 2;
const WHAT = 3;
const LOCK = 4;
const SITE = 5;

export const TRANSITIONS = ['acquired', 'released', 'waits', 'timed out', 'owner died', 'took over', 'enters', 'leaves', 'dead', 'notified'] as const;
export type TransitionKind = (typeof TRANSITIONS)[number];
const CODES = Object.fromEntries(TRANSITIONS.map((what, code) => [what, code])) as Record<TransitionKind, number>;

export interface Transition {
  readonly atMs: number;
  readonly slot: number;
  readonly what: TransitionKind;
  /** Interned name of the lock or condition, or of the thread for enters, leaves and dead. */
  readonly subject: number;
  readonly site: number;
}

export class TransitionLog {
  static readonly WORDS = 1 + ENTRIES * ENTRY_WORDS;
  readonly #words: Int32Array;

  constructor(words: Int32Array) {
    this.#words = words;
  }

  add(atMs: number, slot: number, what: TransitionKind, subject: number, site: number): void {
    const words = this.#words;
    const seq = Atomics.add(words, 0, 1);
    const at = 1 + (seq & (ENTRIES - 1)) * ENTRY_WORDS;
    Atomics.store(words, at + SEQ, 0);
    words[at + AT_MS] = atMs;
    words[at + SLOT] = slot;
    words[at + WHAT] = CODES[what];
    words[at + LOCK] = subject;
    words[at + SITE] = site;
    Atomics.store(words, at + SEQ, (seq + 1) | 0 || 1);
  }

  /** Oldest first. */
  read(limit = ENTRIES): Transition[] {
    const words = this.#words;
    const head = Atomics.load(words, 0);
    const found: Transition[] = [];
    for (let back = Math.min(limit, ENTRIES); back > 0; back--) {
      const seq = (head - back) | 0;
      const at = 1 + (seq & (ENTRIES - 1)) * ENTRY_WORDS;
      const expected = (seq + 1) | 0 || 1;
      if (Atomics.load(words, at + SEQ) !== expected) continue;
      const entry = {
        atMs: words[at + AT_MS]!,
        slot: words[at + SLOT]!,
        what: TRANSITIONS[words[at + WHAT]!] ?? 'enters',
        subject: words[at + LOCK]!,
        site: words[at + SITE]!,
      };
      if (Atomics.load(words, at + SEQ) === expected) found.push(entry);
    }
    return found;
  }
}
