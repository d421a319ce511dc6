/** A session's words as one who looks at all of them at once sees them: what must hold, while threads run and at the end. */
import { dirname } from 'node:path';
import { ITEM, STATE } from '../../../src/shared/session/item-table.ts';
import * as layout from '../../../src/shared/session/layout.ts';
import { Ledger, sumOfStates } from '../../../src/shared/session/ledger.ts';
import { FILE_STATE, RECORD } from '../../../src/shared/session/registry.ts';
import type { SessionMemory } from '../../../src/shared/session/session.ts';
import { stagedPath } from '../../../src/shared/staging.ts';
import { LockTable } from '../../../src/shared/sync/lock-table.ts';
import { SESSION_LOCKS } from '../../../src/shared/sync/ranks.ts';
import type { MemoryFiles } from './memory-files.ts';

export class SessionState {
  readonly at: layout.SessionLayout;
  /** First word of each lock, by name, and of the condition. */
  readonly locks: Readonly<Record<string, number>>;
  readonly pendingCond: number;
  /** The words that decide how a run goes on. */
  readonly watched: Int32Array;
  readonly #words: Int32Array;
  readonly #files: MemoryFiles;
  readonly #stagingDir: string;
  readonly #ledger: Ledger;

  constructor({ control, limits, stagingDir }: SessionMemory, files: MemoryFiles) {
    this.at = layout.sessionLayout(limits);
    this.#words = new Int32Array(control);
    this.#files = files;
    this.#stagingDir = stagingDir;
    this.#ledger = new Ledger(this.#words.subarray(this.at.ledger));
    const table = new LockTable(this.#words, this.at.locks, layout.LOCK_SPECS);
    this.locks = Object.fromEntries(SESSION_LOCKS.map(({ name }) => [name, table.offset(name)]));
    this.pendingCond = table.offset('pendingCond');
    const run = (from: number, count: number) => Array.from({ length: count }, (_, i) => from + i);
    const { ledger, items, registry, pages, writerRing, words } = this.at;
    // Of locks: owner and priority. Of pages: as many as a scenario can use.
    const owners = Object.values(this.locks).flatMap((at) => [at, at + 1]);
    this.watched = Int32Array.from([
      ...run(0, 16),
      ...owners,
      this.pendingCond,
      ...run(ledger, Ledger.WORDS),
      ...run(items, registry - items),
      ...run(registry, pages - registry),
      ...run(pages, 32),
      ...run(writerRing, words - writerRing),
      ...run(this.at.figures * 2, 16),
    ]);
  }

  /** Token of the owner, 0 when free. */
  owner(lock: string): number {
    return this.#words[this.locks[lock]!]! >>> 1;
  }

  /** What must hold whenever nobody is inside `pending`, `registry` or `cancelled`. */
  whileOpen(reserved: number): string | undefined {
    if (['pending', 'registry', 'cancelled'].some((lock) => this.owner(lock) !== 0)) return undefined;
    const records = this.#records();
    let charged = 0;
    let pages = 0;
    let visible = 0;
    for (let item = 0; item < this.at.itemCount; item++) {
      if (this.#item(item, ITEM.state) === STATE.free) continue;
      charged += this.#item(item, ITEM.charged);
      pages += this.#item(item, ITEM.pageCount);
      if (this.#item(item, ITEM.visible) !== 1) continue;
      visible++;
      const generation = this.#item(item, ITEM.generation);
      if (!records.some((r) => r.state === FILE_STATE.pending && r.generation === generation)) return `item ${item} is pending and not in the registry`;
    }
    if (records.filter((r) => r.state === FILE_STATE.pending).length !== visible) return 'the registry holds a boundary as pending that no item is for';
    if (this.#held !== charged + reserved) return `${this.#held} bytes are held; items have ${charged}, reservations ${reserved}`;
    const inUse = this.#words[this.at.pages + 4]!;
    if (inUse !== pages) return `${inUse} pages are in use, items have ${pages}`;
    for (const r of records)
      if (r.state === FILE_STATE.file && !this.#files.isFile(this.#path(r))) return `the registry holds a file at ${r.tokenCount} that is not there`;
    const condemned = records.filter((r) => r.state === FILE_STATE.condemned && !r.removeFailed).length;
    if (condemned !== this.#words[layout.WORD.condemned]) return `${this.#words[layout.WORD.condemned]} condemned files counted, ${condemned} in the registry`;
    return undefined;
  }

  /** What must hold when every thread has ended: nothing held, and the folder is what the registry says. */
  atEnd(taken: readonly string[]): string | undefined {
    for (const [name, at] of Object.entries(this.locks)) if (this.#words[at] !== 0) return `${name} is not free at the end`;
    if (this.#held !== 0) return `${this.#held} bytes are held at the end`;
    for (let item = 0; item < this.at.itemCount; item++)
      if (this.#item(item, ITEM.state) !== STATE.free) return `item ${item} is not free at the end (state ${this.#item(item, ITEM.state)})`;
    const records = this.#records();
    const other = records.find((r) => r.state !== FILE_STATE.file);
    if (other !== undefined) return `the registry ends with a record in state ${other.state}`;
    const known = [...records.map((r) => this.#path(r)), ...taken];
    const orphan = this.#files.files.find((path) => !known.includes(path));
    if (orphan !== undefined) return `orphan: ${orphan}`;
    const missing = known.find((path) => !this.#files.isFile(path));
    if (missing !== undefined) return `missing: ${missing}`;
    const folders = this.#files.folders.filter((path) => dirname(path) === this.#stagingDir);
    const empty = folders.find((path) => !known.some((file) => dirname(file) === path));
    if (empty !== undefined) return `a folder without files is left: ${empty}`;
    const figures = this.#ledger.read();
    if (sumOfStates(figures) !== figures.captured) return `the ledger's states are ${sumOfStates(figures)}, captured ${figures.captured}`;
    if (figures.pending !== 0) return `${figures.pending} boundaries are pending at the end`;
    if (figures.written !== known.length) return `${figures.written} boundaries are written, files ${known.length}`;
    return undefined;
  }

  get #held(): number {
    return this.#words[this.at.figures * 2]!;
  }

  #item(item: number, field: number): number {
    return this.#words[this.at.items + 16 + item * 40 + field]!;
  }

  #records(): { state: number; generation: number; tokenCount: number; removeFailed: boolean; key: Int32Array }[] {
    const records = [];
    for (let at = this.at.registry + 16; at < this.at.registry + 16 + 3 * 16; at += 16) {
      if (this.#words[at] === FILE_STATE.none) continue;
      const word = (offset: number) => this.#words[at + offset]!;
      const key = this.#words.slice(at + RECORD.key, at + RECORD.key + 8);
      records.push({
        state: word(0),
        generation: word(RECORD.generation),
        tokenCount: word(RECORD.tokenCount),
        removeFailed: word(RECORD.removeFailed) === 1,
        key,
      });
    }
    return records;
  }

  #path(record: { key: Int32Array; tokenCount: number }): string {
    return stagedPath(this.#stagingDir, record.key, record.tokenCount);
  }
}
