/**
 * The engine's own look into the index, read-only, to know at admission whether a restore is worth asking for.
 *
 * A hint, never a promise: what it finds may be gone when the restore comes, which then says so. Whatever goes wrong here
 * (no index yet, damaged, another schema, a busy file) is 'unknown', and the lookup goes along with the restore.
 * The connection belongs to this thread. Only SQLite opens the file; whether it is still the same one is asked by `stat`.
 */
import { statSync } from 'node:fs';
import { ChainLookup, type LookupRequest } from '../../shared/blocks/chain-lookup.ts';
import { IndexDb } from '../../shared/blocks/index-db.ts';
import { BlockPaths } from '../../shared/blocks/paths.ts';
import type { MissReason } from '../../shared/errors.ts';

export type LookupResult =
  | {
      readonly known: true;
      readonly tokenCount: number /** Hash of the block that ends there; '' for none. */;
      readonly tip: string;
      readonly reason: MissReason | null;
      readonly detail: string;
    }
  | { readonly known: false; readonly detail: string };

export class IndexReader {
  readonly #path: string;
  readonly #usable: () => boolean;
  readonly #complete: () => boolean;
  #index: IndexDb | null = null;
  #inode = 0n;

  /**
   * `usable`: whether the store worker keeps the index on disk (`RestoreClient.indexUsable`). `complete`: whether no unit of
   * this engine is on its way into it (`unitsInFlight`); a restore would wait for that one, so the index has no last word.
   */
  constructor(cacheDir: string, usable: () => boolean, complete: () => boolean = () => true) {
    this.#path = new BlockPaths(cacheDir).index;
    this.#usable = usable;
    this.#complete = complete;
  }

  /** The longest prefix that the index knows as restorable. Never throws, never waits longer than SQLite's short busy limit. */
  longestChain(request: LookupRequest): LookupResult {
    if (!this.#usable()) return { known: false, detail: 'the store worker keeps no index on disk' };
    if (!this.#complete()) return { known: false, detail: 'blocks are on their way into the index' };
    try {
      const lookup = new ChainLookup(this.#open(), request);
      const point = lookup.points().next();
      const shortfall = lookup.reason();
      if (point.done === true) return { known: true, tokenCount: 0, tip: '', ...shortfall };
      const { tokenCount, chain } = point.value;
      return { known: true, tokenCount, tip: chain.at(-1)?.hash ?? '', reason: null, detail: '' };
    } catch (error) {
      this.close();
      return { known: false, detail: error instanceof Error ? error.message : String(error) };
    }
  }

  /** Whether the index has this block, with its state if that is asked for; false when it is not known. */
  has(hash: string, withState: boolean): boolean {
    if (!this.#usable()) return false;
    try {
      const row = this.#open().get(hash);
      return row !== null && (!withState || row.stateBytes > 0);
    } catch {
      // The same as not stored: the block is handed over again and the store worker skips what it has.
      this.close();
      return false;
    }
  }

  #open(): IndexDb {
    const inode = statSync(this.#path, { bigint: true }).ino;
    if (this.#index !== null && inode === this.#inode) return this.#index;
    this.close();
    this.#inode = inode;
    this.#index = new IndexDb(this.#path, { readOnly: true });
    return this.#index;
  }

  /** Call it before the thread ends. */
  close(): void {
    this.#index?.close();
    this.#index = null;
  }
}
