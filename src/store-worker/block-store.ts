/**
 * The block store of one cache folder, on the store worker: index, ledger and files kept in step.
 *
 * One thread, so no locks. Order of every publication: files written and synced, renamed, their folder synced once, then the
 * index. Order of every removal: the file, then the ledger, then the row; a file that will not go keeps its row and its
 * bytes in the ledger. A damaged index is rebuilt where it is met and the operation done again.
 */

import { type BlockRow, IndexDb, isDamage } from '../shared/blocks/index-db.ts';
import { BlockPaths } from '../shared/blocks/paths.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { Files } from '../shared/files.ts';
import { errnoOf } from '../shared/files.ts';
import type { BlockPart } from '../shared/layer-state.ts';
import type { StoreMode } from '../shared/worker-init.ts';
import { type BlockInfo, openIndex, type Reconciled, reconcile } from './rebuild.ts';
import { freeBytesOf, Space } from './space.ts';
import { otherBytes, physicalSize, walkCache } from './walk.ts';

export interface BlockStoreOptions {
  readonly files: Files;
  readonly cacheDir: string;
  readonly mode: StoreMode;
  readonly maxBytes: number;
  readonly emit: (event: StoreEvent) => void;
  readonly freeBytes?: () => number;
  readonly otherBytes?: () => number;
  readonly now?: () => number;
  readonly probeTtlMs?: number;
}

/** A synced temporary or staged file that is to become a part of a block. */
export interface ReadyFile {
  readonly part: BlockPart;
  readonly path: string;
}

const EVICTED_REMEMBERED = 8192;

/** Whether an error means that the index at hand is no good and should be rebuilt. */
export function isIndexDamage(error: unknown): boolean {
  return isDamage(error) || String((error as { code?: unknown } | null)?.code).startsWith('SQLITE_IOERR');
}

export class BlockStore {
  readonly paths: BlockPaths;
  readonly files: Files;
  readonly mode: StoreMode;
  readonly space: Space;
  readonly emit: (event: StoreEvent) => void;
  /** Files in block folders that are left alone, oldest first. */
  foreign: Reconciled['foreign'] = [];
  failedRemovals = 0;
  #index: IndexDb;
  #refreshedAt = Number.NEGATIVE_INFINITY;
  /** Folders whose entries in their parents are known to be synced. */
  readonly #syncedFolders = new Set<string>();
  readonly #evicted = new Set<string>();

  constructor(options: BlockStoreOptions) {
    this.files = options.files;
    this.mode = options.mode;
    this.emit = options.emit;
    this.paths = new BlockPaths(options.cacheDir);
    this.space = new Space({
      maxBytes: options.maxBytes,
      freeBytes: options.freeBytes ?? (() => freeBytesOf(options.cacheDir)),
      otherBytes: options.otherBytes ?? (() => otherBytes(this.paths)),
      now: options.now ?? (() => performance.now()),
      warn: (message, details) => this.emit({ type: 'note', code: 'CACHE_FULL', message, details }),
      probeTtlMs: options.probeTtlMs ?? 30_000,
    });
    this.#index = this.#openIndex('start');
  }

  /** True while the index on disk is the one in use, so that engines may read it. */
  get indexOnDisk(): boolean {
    return !this.#index.inMemory;
  }

  #openIndex(why: 'start' | 'damage' | 'recovery' | 'refresh'): IndexDb {
    const walk = walkCache(this.paths);
    const readOnly = this.mode === 'read-only';
    let index: IndexDb;
    let problem: string | null = null;
    let fresh = false;
    if (readOnly) {
      ({ index, problem } = this.#openReadOnly());
    } else {
      ({ index, problem, fresh } = openIndex(this.paths.index, this.files));
      for (const file of walk.temporaries) this.#tryRemove(file.path);
    }
    // Read through another process's index, nothing can be made to agree; what it lacks is simply not found.
    const result =
      readOnly && !index.inMemory
        ? { blockBytes: index.totals().bytes, foreign: [], added: 0, lost: 0, removed: 0 }
        : reconcile(index, walk, this.files, this.paths, readOnly);
    this.space.blockBytes = result.blockBytes;
    this.foreign = result.foreign;
    this.space.foreignBytes = result.foreign.reduce((sum, file) => sum + file.bytes, 0);
    this.space.invalidate();
    if (why !== 'refresh' && (problem !== null || (fresh && result.added > 0)))
      this.emit({
        type: 'note',
        code: 'INDEX_REBUILT',
        message: `the index was ${problem === null ? 'missing' : 'not usable'} and was rebuilt from ${result.added} block files${index.inMemory ? ', in memory' : ''}`,
        details: { problem, added: result.added, lost: result.lost, removed: result.removed, inMemory: index.inMemory, when: why },
      });
    if (result.removed > 0)
      this.emit({ type: 'note', code: 'FORMAT_INVALID', message: `${result.removed} damaged block files were removed`, details: { files: result.removed } });
    if (why === 'start' && result.foreign.length > 0) this.#noteForeign(result.foreign);
    return index;
  }

  #openReadOnly(): { index: IndexDb; problem: string | null } {
    try {
      return { index: new IndexDb(this.paths.index, { readOnly: true }), problem: null };
    } catch (error) {
      return { index: new IndexDb(null), problem: (error as Error).message };
    }
  }

  #noteForeign(foreign: Reconciled['foreign']): void {
    const reasons: Record<string, number> = {};
    for (const { reason } of foreign) reasons[reason] = (reasons[reason] ?? 0) + 1;
    const bytes = foreign.reduce((sum, file) => sum + file.bytes, 0);
    this.emit({
      type: 'note',
      code: 'FOREIGN_FILES',
      message: `${foreign.length} files (${bytes} bytes) in the cache folder are of other formats: counted, left alone, not used`,
      details: { files: foreign.length, bytes, reasons },
    });
  }

  #tryRemove(path: string): boolean {
    try {
      this.files.removeFile(path);
      return true;
    } catch (error) {
      this.failedRemovals += 1;
      this.emit({
        type: 'note',
        code: 'CACHE_IO',
        message: `${path} could not be removed (${errnoOf(error)}); it stays in the ledger`,
        details: { path, errno: errnoOf(error) },
      });
      return false;
    }
  }

  /** Runs an index operation; when the index turns out to be damaged, rebuilds it and runs the operation again. */
  withIndex<T>(act: (index: IndexDb) => T): T {
    try {
      return act(this.#index);
    } catch (error) {
      if (!isIndexDamage(error)) throw error;
      this.reopenIndex('damage');
      return act(this.#index);
    }
  }

  /** Before the first write after a failure: a folder that is gone is made again, and the index with it. */
  revive(): void {
    if (this.files.kind(this.paths.cacheDir) === 'missing') this.files.ensureFolder(this.paths.cacheDir);
    this.files.ensureFolder(this.paths.blocks);
    this.#syncedFolders.clear();
    // Without its file the connection goes on working on something that no start will ever find.
    if (this.#index.inMemory || this.files.kind(this.paths.index) !== 'file') this.reopenIndex('recovery');
  }

  /** The index itself, for readers that handle its damage themselves. Not to be kept over a yield without doing so. */
  get index(): IndexDb {
    return this.#index;
  }

  /** Opens the index again from what is on disk: after damage, and when a folder that was gone is back. */
  reopenIndex(why: 'damage' | 'recovery' | 'refresh'): void {
    this.#index.close();
    this.#index = this.#openIndex(why);
  }

  /**
   * Read-only mode: another process may have written since. Through its index that shows by itself; without one, folders are
   * walked again, at most every two seconds.
   */
  refresh(now: number): void {
    if (this.mode !== 'read-only' || !this.#index.inMemory || now - this.#refreshedAt < 2000) return;
    this.#refreshedAt = now;
    this.reopenIndex('refresh');
  }

  /** The row of a block, or null. */
  row(hash: string): BlockRow | null {
    return this.withIndex((index) => index.get(hash));
  }

  /** Whether a part is indexed and its file is where it should be. */
  hasPart(hash: string, part: BlockPart): boolean {
    const row = this.row(hash);
    return row !== null && (part === 'kv' ? row.kvBytes : row.stateBytes) > 0 && this.files.kind(this.paths.block(hash, part)) === 'file';
  }

  /** Makes the folder that a block's files go to; its own entry is synced the first time it is used in this life. */
  prepareFolder(hash: string): void {
    const folder = this.paths.fanOut(hash);
    if (this.#syncedFolders.has(folder) && this.files.kind(folder) === 'folder') return;
    this.files.ensureFolder(this.paths.blocks);
    this.files.ensureFolder(folder);
    this.files.syncFolder(this.paths.cacheDir);
    this.files.syncFolder(this.paths.blocks);
    this.#syncedFolders.add(folder);
  }

  /**
   * Publishes files of one block: renames, one folder sync, then the index. All or nothing: on an error what was renamed is
   * removed again and the error thrown. Returns the hashes whose chain became whole by this, this block's own first.
   */
  publish(block: BlockInfo, ready: readonly ReadyFile[]): string[] {
    const published: { part: BlockPart; path: string; bytes: number }[] = [];
    try {
      for (const { part, path } of ready) {
        const target = this.paths.block(block.hash, part);
        const bytes = physicalSize(path)?.bytes ?? 0;
        this.files.rename(path, target);
        published.push({ part, path: target, bytes });
      }
      if (published.length > 0) this.files.syncFolder(this.paths.fanOut(block.hash));
      const bytesOf = (part: BlockPart) => published.find((file) => file.part === part)?.bytes ?? 0;
      const before = this.row(block.hash);
      const chained = this.withIndex((index) =>
        index.transaction(() => {
          index.put({ ...block, kvBytes: bytesOf('kv'), stateBytes: bytesOf('state') });
          for (const { part, bytes } of published) index.setBytes(block.hash, part, bytes);
          return this.#extendChain(index, block.hash);
        }),
      );
      for (const { part, bytes } of published) this.space.blockBytes += bytes - ((part === 'kv' ? before?.kvBytes : before?.stateBytes) ?? 0);
      this.#evicted.delete(block.hash);
      return chained;
    } catch (error) {
      for (const { path } of published) this.#tryRemove(path);
      throw error;
    }
  }

  /** Sets `chain` on a block whose parents are whole, and on whatever was waiting for it. */
  #extendChain(index: IndexDb, hash: string): string[] {
    const row = index.get(hash);
    if (row === null || row.chain === 1 || row.kvBytes === 0) return [];
    if (row.parent !== '' && index.get(row.parent)?.chain !== 1) return [];
    const done: string[] = [];
    const queue = [hash];
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      index.setChain(next, true);
      done.push(next);
      for (const child of index.children(next)) if (child.chain === 0 && child.kvBytes > 0) queue.push(child.hash);
    }
    return done;
  }

  /** The chain of `hash`, root first, as far as the index knows it. */
  chainOf(hash: string): string[] {
    return this.withIndex((index) => {
      const chain: string[] = [];
      for (let row = index.get(hash); row !== null; row = row.parent === '' ? null : index.get(row.parent)) chain.unshift(row.hash);
      return chain;
    });
  }

  /** Renews the recency of blocks that were used with success. */
  touch(hashes: readonly string[]): void {
    if (this.mode === 'writer' && hashes.length > 0) this.withIndex((index) => index.touch(hashes));
  }

  /** A block and everything that hangs on it, deepest first. */
  #subtree(hash: string): BlockRow[] {
    return this.withIndex((index) => {
      const root = index.get(hash);
      const found = root === null ? [] : [root];
      for (let i = 0; i < found.length; i += 1) found.push(...index.children(found[i]!.hash));
      return found.reverse();
    });
  }

  /** Removes files and row of one block. False when a file would not go. */
  removeBlock(row: BlockRow): boolean {
    for (const part of ['kv', 'state'] as const) {
      const bytes = part === 'kv' ? row.kvBytes : row.stateBytes;
      if (bytes === 0) continue;
      if (!this.#tryRemove(this.paths.block(row.hash, part))) return false;
      this.space.blockBytes -= bytes;
      this.withIndex((index) => index.setBytes(row.hash, part, 0));
    }
    this.withIndex((index) => index.remove(row.hash));
    return true;
  }

  /** A block turned out to be unusable: it goes with all its descendants. In read-only mode nothing changes. */
  discard(hash: string): void {
    if (this.mode === 'read-only') return;
    for (const row of this.#subtree(hash)) if (!this.removeBlock(row)) return;
  }

  /** One part turned out to be unusable while the rest of the block is good. */
  discardState(hash: string): void {
    const row = this.row(hash);
    if (this.mode === 'read-only' || row === null || row.stateBytes === 0) return;
    if (row.kvBytes === 0) {
      this.removeBlock(row);
      return;
    }
    if (!this.#tryRemove(this.paths.block(hash, 'state'))) return;
    this.space.blockBytes -= row.stateBytes;
    this.withIndex((index) => index.setBytes(hash, 'state', 0));
  }

  /** A file that another version or model wrote under this name: the index forgets it, the file stays and is counted. */
  forget(hash: string): void {
    if (this.mode === 'read-only') return;
    for (const row of this.#subtree(hash)) {
      this.withIndex((index) => index.remove(row.hash));
      for (const part of ['kv', 'state'] as const) {
        const file = physicalSize(this.paths.block(row.hash, part));
        this.space.blockBytes -= part === 'kv' ? row.kvBytes : row.stateBytes;
        if (file === null) continue;
        this.space.foreignBytes += file.bytes;
        this.foreign.push({ ...file, reason: 'not of this version or model' });
      }
    }
  }

  /** Removes a file of another format for space; false when it would not go. */
  removeForeign(file: Reconciled['foreign'][number]): boolean {
    if (this.mode === 'read-only' || !this.#tryRemove(file.path)) return false;
    this.foreign = this.foreign.filter((other) => other !== file);
    this.space.foreignBytes -= file.bytes;
    return true;
  }

  /** Remembers a hash that was removed for space, so that a later miss can say so. */
  rememberEvicted(hash: string): void {
    this.#evicted.add(hash);
    if (this.#evicted.size > EVICTED_REMEMBERED) this.#evicted.delete(this.#evicted.values().next().value!);
  }

  wasEvicted(hash: string): boolean {
    return this.#evicted.has(hash);
  }

  close(): void {
    this.#index.close();
  }
}
