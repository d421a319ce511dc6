/**
 * The index of one cache folder as the store worker holds it: opened, checked against the disk, and replaced when it fails.
 *
 * In a folder that another process writes, that process's index is read; nothing can be made to agree there, and what it
 * lacks is simply not found. Without a readable index, one in memory is made from the file headers.
 */
import { type BlockRow, IndexDb, isDamage } from '../shared/blocks/index-db.ts';
import type { BlockPaths } from '../shared/blocks/paths.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { Files } from '../shared/files.ts';
import type { StoreMode } from '../shared/worker-init.ts';
import { openIndex, type Reconciled, reconcile } from './rebuild.ts';
import type { Space } from './space.ts';
import { walkCache } from './walk.ts';

/** How often a read-only store without a readable index walks the folder for what is new. */
const REFRESH_MS = 2000;

/** Whether an error means that the index at hand is no good and should be rebuilt. */
export function isIndexDamage(error: unknown): boolean {
  return isDamage(error) || String((error as { code?: unknown } | null)?.code).startsWith('SQLITE_IOERR');
}

export interface StoreIndexParts {
  readonly files: Files;
  readonly paths: BlockPaths;
  readonly mode: StoreMode;
  readonly space: Space;
  readonly emit: (event: StoreEvent) => void;
  /** Removes a file; false when it would not go. */
  readonly tryRemove: (path: string) => boolean;
}

type Why = 'start' | 'damage' | 'recovery' | 'refresh';

export class StoreIndex {
  /** Files in block folders that are left alone, oldest first. */
  foreign: Reconciled['foreign'] = [];
  #db: IndexDb;
  #refreshedAt = Number.NEGATIVE_INFINITY;
  readonly #parts: StoreIndexParts;

  constructor(parts: StoreIndexParts) {
    this.#parts = parts;
    this.#db = this.#open('start');
  }

  /** The index itself, for readers that handle its damage themselves. Not to be kept over a yield without doing so. */
  get db(): IndexDb {
    return this.#db;
  }

  /** Runs an index operation; when the index turns out to be damaged, rebuilds it and runs the operation again. */
  use<T>(act: (index: IndexDb) => T): T {
    try {
      return act(this.#db);
    } catch (error) {
      if (!isIndexDamage(error)) throw error;
      this.reopen('damage');
      return act(this.#db);
    }
  }

  row(hash: string): BlockRow | null {
    return this.use((index) => index.get(hash));
  }

  /** Opens the index again from what is on disk: after damage, and when a folder that was gone is back. */
  reopen(why: Exclude<Why, 'start'>): void {
    this.#db.close();
    this.#db = this.#open(why);
  }

  /** Read-only mode without a readable index: another process may have written since the last look. */
  refresh(now: number): void {
    if (this.#parts.mode !== 'read-only' || !this.#db.inMemory || now - this.#refreshedAt < REFRESH_MS) return;
    this.#refreshedAt = now;
    this.reopen('refresh');
  }

  close(): void {
    this.#db.close();
  }

  #open(why: Why): IndexDb {
    const { files, paths, mode, space, tryRemove } = this.#parts;
    const readOnly = mode === 'read-only';
    const walk = walkCache(paths);
    // Only at start do they belong to nobody: later one may be a unit's that is being stored.
    if (!readOnly && why === 'start') for (const file of walk.temporaries) tryRemove(file.path);
    let { index, problem, fresh } = readOnly ? openReadOnly(paths.index) : openIndex(paths.index, files);
    let result: Reconciled;
    try {
      result = readOnly && !index.inMemory ? asItIs(index) : reconcile(index, walk, files, paths, readOnly);
    } catch (error) {
      // It opened and cannot be written or read all the same (a full disk, damage that the check passed over).
      index.close();
      ({ index, fresh, problem } = { index: new IndexDb(null), fresh: true, problem: (error as Error).message });
      result = reconcile(index, walk, files, paths, readOnly);
    }
    this.foreign = result.foreign;
    space.blockBytes = result.blockBytes;
    space.foreignBytes = result.foreign.reduce((sum, file) => sum + file.bytes, 0);
    space.invalidate();
    if (why !== 'refresh') this.#tell(why, result, index.inMemory, problem, fresh);
    return index;
  }

  #tell(why: Why, result: Reconciled, inMemory: boolean, problem: string | null, fresh: boolean): void {
    const { emit } = this.#parts;
    const { added, lost, removed, foreign } = result;
    if (problem !== null || (fresh && added > 0))
      emit({
        type: 'note',
        code: 'INDEX_REBUILT',
        message: `the index was ${problem === null ? 'missing' : 'not usable'} and was rebuilt from ${added} block files${inMemory ? ', in memory' : ''}`,
        details: { problem, added, lost, removed, inMemory, when: why },
      });
    if (removed > 0) emit({ type: 'note', code: 'FORMAT_INVALID', message: `${removed} damaged block files were removed`, details: { files: removed } });
    if (why !== 'start' || foreign.length === 0) return;
    const reasons: Record<string, number> = {};
    for (const { reason } of foreign) reasons[reason] = (reasons[reason] ?? 0) + 1;
    const bytes = foreign.reduce((sum, file) => sum + file.bytes, 0);
    emit({
      type: 'note',
      code: 'FOREIGN_FILES',
      message: `${foreign.length} files (${bytes} bytes) in the cache folder are of other formats: counted, left alone, not used`,
      details: { files: foreign.length, bytes, reasons },
    });
  }
}

/** Another process's index: nothing is compared with the disk, nothing is changed. */
function asItIs(index: IndexDb): Reconciled {
  return { blockBytes: index.totals().bytes, foreign: [], added: 0, lost: 0, removed: 0 };
}

function openReadOnly(path: string): { index: IndexDb; problem: string | null; fresh: boolean } {
  try {
    return { index: new IndexDb(path, { readOnly: true }), problem: null, fresh: false };
  } catch (error) {
    return { index: new IndexDb(null), problem: (error as Error).message, fresh: true };
  }
}
