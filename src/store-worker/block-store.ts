/**
 * The block store of one cache folder, on the store worker: index, ledger and files kept in step.
 *
 * One thread, so no locks. Order of every publication: files written and synced, renamed, their folder synced once, then the
 * index. Order of every removal: the file, then the ledger, then the row; a file that will not go keeps its row and its
 * bytes in the ledger. A damaged index is rebuilt where it is met and the operation done again.
 */

import type { BlockRow, IndexDb } from '../shared/blocks/index-db.ts';
import { BlockPaths } from '../shared/blocks/paths.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { Files } from '../shared/files.ts';
import { errnoOf } from '../shared/files.ts';
import type { BlockPart } from '../shared/layer-state.ts';
import type { StoreMode } from '../shared/worker-init.ts';
import type { BlockInfo, Reconciled } from './rebuild.ts';
import { freeBytesOf, Space } from './space.ts';
import { StoreIndex } from './store-index.ts';
import { otherBytes, physicalSize } from './walk.ts';

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

export class BlockStore {
  readonly paths: BlockPaths;
  readonly files: Files;
  readonly mode: StoreMode;
  readonly space: Space;
  readonly index: StoreIndex;
  readonly emit: (event: StoreEvent) => void;
  failedRemovals = 0;
  failedTouches = 0;
  /** Folders whose entries in their parents are known to be synced. */
  readonly #syncedFolders = new Set<string>();

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
      warn: (code, message, details) => this.emit({ type: 'note', code, message, details }),
      probeTtlMs: options.probeTtlMs ?? 30_000,
    });
    this.index = new StoreIndex({
      files: this.files,
      paths: this.paths,
      mode: this.mode,
      space: this.space,
      emit: this.emit,
      tryRemove: (path) => this.#tryRemove(path),
    });
  }

  /** True while the index on disk is the one in use, so that engines may read it. */
  get indexOnDisk(): boolean {
    return !this.index.db.inMemory;
  }

  /** Files of other formats in the block folders, oldest first. */
  get foreign(): readonly Reconciled['foreign'][number][] {
    return this.index.foreign;
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

  /** Runs an index operation, on a rebuilt index when the one at hand is damaged. */
  withIndex<T>(act: (index: IndexDb) => T): T {
    return this.index.use(act);
  }

  /** Before the first write after a failure: a folder that is gone is made again, and the index with it. */
  revive(): void {
    if (this.files.kind(this.paths.cacheDir) === 'missing') this.files.ensureFolder(this.paths.cacheDir);
    this.files.ensureFolder(this.paths.blocks);
    this.#syncedFolders.clear();
    // Without its file the connection goes on working on something that no start will ever find.
    if (!this.indexOnDisk || this.files.kind(this.paths.index) !== 'file') this.index.reopen('recovery');
  }

  /** The row of a block, or null. */
  row(hash: string): BlockRow | null {
    return this.index.row(hash);
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
        this.#replaced(target);
        published.push({ part, path: target, bytes });
      }
      if (published.length > 0) this.files.syncFolder(this.paths.fanOut(block.hash));
      const bytesOf = (part: BlockPart) => published.find((file) => file.part === part)?.bytes ?? 0;
      const { before, chained } = this.withIndex((index) =>
        index.transaction(() => {
          const before = index.get(block.hash);
          index.put({ ...block, kvBytes: bytesOf('kv'), stateBytes: bytesOf('state') });
          for (const { part, bytes } of published) index.setBytes(block.hash, part, bytes);
          index.forgetEvicted(block.hash);
          return { before, chained: this.#extendChain(index, block.hash) };
        }),
      );
      for (const { part, bytes } of published) this.space.blockBytes += bytes - ((part === 'kv' ? before?.kvBytes : before?.stateBytes) ?? 0);
      return chained;
    } catch (error) {
      for (const { path } of published) this.#tryRemove(path);
      throw error;
    }
  }

  /** What another version or model had left under this very name is gone by the rename; making room must not take the new file for it. */
  #replaced(path: string): void {
    const file = this.index.foreign.find((other) => other.path === path);
    if (file === undefined) return;
    this.index.foreign = this.index.foreign.filter((other) => other !== file);
    this.space.foreignBytes -= file.bytes;
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

  /** Whether the states of a block and of all before it are stored. */
  statesWhole(hash: string): boolean {
    return this.withIndex((index) => {
      let row = index.get(hash);
      while (row !== null && row.stateBytes > 0 && row.parent !== '') row = index.get(row.parent);
      return row !== null && row.stateBytes > 0;
    });
  }

  /** The chain of `hash`, root first, as far as the index knows it. */
  chainOf(hash: string): string[] {
    return this.withIndex((index) => {
      const chain: string[] = [];
      for (let row = index.get(hash); row !== null; row = row.parent === '' ? null : index.get(row.parent)) chain.unshift(row.hash);
      return chain;
    });
  }

  /** Renews the recency of blocks that were used with success. An index that cannot be written loses no more than that. */
  touch(hashes: readonly string[]): void {
    if (this.mode === 'read-only' || hashes.length === 0) return;
    try {
      this.withIndex((index) => index.touch(hashes));
    } catch (error) {
      this.failedTouches += 1;
      if (this.failedTouches === 1)
        this.emit({
          type: 'note',
          code: 'CACHE_IO',
          message: `the index cannot be written: ${String(error)}; what was used last is not remembered`,
          details: {},
        });
    }
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
        this.index.foreign.push({ ...file, reason: 'not of this version or model' });
      }
    }
  }

  /** Removes a file of another format for space; false when it would not go. */
  removeForeign(file: Reconciled['foreign'][number]): boolean {
    if (this.mode === 'read-only' || !this.#tryRemove(file.path)) return false;
    this.index.foreign = this.index.foreign.filter((other) => other !== file);
    this.space.foreignBytes -= file.bytes;
    return true;
  }

  /** Whether a block was removed for space and is not stored again. */
  wasEvicted(hash: string): boolean {
    return this.withIndex((index) => index.wasEvicted(hash));
  }

  close(): void {
    this.index.close();
  }
}
