/**
 * Bringing index and disk together: at start, and whenever the index had to be set aside.
 *
 * The disk is right. Blocks that the index does not know are read from their headers and added in order of age; rows whose
 * files are gone lose them. Files of other format versions are left alone and counted; files under a block's name whose
 * header is damaged can never be used by anybody and go.
 */
import { createHash } from 'node:crypto';
import { existsSync, renameSync, statSync } from 'node:fs';
import { readImageHeader } from '../shared/blocks/block-file.ts';
import { tokenBytes } from '../shared/blocks/identity.ts';
import type { ParsedImage } from '../shared/blocks/image-parse.ts';
import { type BlockRow, IndexDb, isDamage } from '../shared/blocks/index-db.ts';
import type { BlockPaths } from '../shared/blocks/paths.ts';
import { errnoOf, type Files } from '../shared/files.ts';
import type { FoundBlock, FoundFile, Walk } from './walk.ts';

export interface Reconciled {
  /** Physical bytes of block files that are in the index now. */
  blockBytes: number;
  /** Files left alone, oldest first, and why. */
  readonly foreign: (FoundFile & { reason: string })[];
  added: number;
  /** Rows that lost their last file. */
  lost: number;
  /** Damaged files removed. */
  removed: number;
}

export interface OpenedIndex {
  readonly index: IndexDb;
  /** Why the index on disk could not be used, or null. */
  readonly problem: string | null;
  /** The old index was set aside (or was not there) and the new one is on disk, empty. */
  readonly fresh: boolean;
}

/** Sets a damaged index aside under one fixed name, so that such files never add up. SQLite has closed it before. */
function quarantine(path: string): void {
  for (const suffix of ['', '-wal', '-shm']) if (existsSync(path + suffix)) renameSync(path + suffix, `${path}.damaged${suffix}`);
}

/**
 * Opens the index of a folder that this process writes. A damaged file is set aside; where no file can be had, the index
 * lives in memory. Never throws.
 */
export function openIndex(path: string, files: Files): OpenedIndex {
  // To SQLite an empty file is a new database.
  const existed = (statSync(path, { throwIfNoEntry: false })?.size ?? 0) > 0;
  let problem: string | null = null;
  for (const attempt of [1, 2]) {
    try {
      // SQLite would make it readable for everybody. Journal and shared memory file get the mode of this one.
      if (!existsSync(path)) files.close(files.createExclusive(path));
      return { index: new IndexDb(path), problem, fresh: problem !== null || !existed };
    } catch (error) {
      problem ??= (error as Error).message;
      if (!isDamage(error) || attempt === 2) break;
      try {
        quarantine(path);
      } catch (renameError) {
        problem = `${problem}; it could not be set aside: ${errnoOf(renameError)}`;
        break;
      }
    }
  }
  return { index: new IndexDb(null), problem, fresh: true };
}

/** What the index keeps of a block whose header was read. */
export type BlockInfo = Pick<BlockRow, 'hash' | 'parent' | 'fingerprint' | 'start' | 'end' | 'tokensSha'>;

export function rowOf(image: ParsedImage): BlockInfo {
  const { blockHash, parentHash, fingerprint, start, end, tokens } = image;
  const tokensSha = parentHash === '' ? createHash('sha256').update(tokenBytes(tokens)).digest('hex') : '';
  return { hash: blockHash, parent: parentHash, fingerprint, start, end, tokensSha };
}

/** Makes the index say what `walk` found. `readOnly`: nothing on disk is removed. */
export function reconcile(index: IndexDb, walk: Walk, files: Files, paths: BlockPaths, readOnly: boolean): Reconciled {
  const result: Reconciled = { blockBytes: 0, foreign: walk.strangers.map((file) => ({ ...file, reason: 'not a block file' })), added: 0, lost: 0, removed: 0 };
  const known = new Map(index.all().map((row) => [row.hash, row]));
  const seen = new Set<string>();
  const unknown: FoundBlock[] = [];
  index.transaction(() => {
    for (const found of walk.blocks) {
      const row = known.get(found.blockHash);
      // An empty file is no block, whatever the index says; its header is "read" and found wanting below.
      if (row === undefined || found.bytes === 0) {
        unknown.push(found);
        continue;
      }
      seen.add(`${found.blockHash}.${found.part}`);
      if (row[found.part === 'kv' ? 'kvBytes' : 'stateBytes'] !== found.bytes) index.setBytes(found.blockHash, found.part, found.bytes);
      result.blockBytes += found.bytes;
    }
    for (const row of known.values()) {
      const kept = (['kv', 'state'] as const).filter((part) => seen.has(`${row.hash}.${part}`));
      if (kept.length === 0) {
        index.remove(row.hash);
        result.lost += 1;
        continue;
      }
      for (const part of ['kv', 'state'] as const) if (!kept.includes(part)) index.setBytes(row.hash, part, 0);
    }
    unknown.sort((a, b) => a.mtimeMs - b.mtimeMs);
    for (const found of unknown) addFound(index, found, files, paths, readOnly, result);
    setChains(index);
  });
  result.foreign.sort((a, b) => a.mtimeMs - b.mtimeMs);
  return result;
}

function addFound(index: IndexDb, found: FoundBlock, files: Files, paths: BlockPaths, readOnly: boolean, result: Reconciled): void {
  const image = readImageHeader(files, found.path);
  const right = image.ok && image.blockHash === found.blockHash && image.part === found.part && paths.block(found.blockHash, found.part) === found.path;
  if (image.ok && right) {
    index.put({ ...rowOf(image), kvBytes: found.part === 'kv' ? found.bytes : 0, stateBytes: found.part === 'state' ? found.bytes : 0 });
    result.blockBytes += found.bytes;
    result.added += 1;
    return;
  }
  const reason = image.ok ? 'its name is not its hash' : image.reason;
  const keep = readOnly || (!image.ok && (image.reason === 'version' || image.reason === 'io' || image.reason === 'gap'));
  if (!keep) {
    try {
      files.removeFile(found.path);
      result.removed += 1;
      return;
    } catch (error) {
      result.foreign.push({ ...found, reason: `${reason}; not removable: ${errnoOf(error)}` });
      return;
    }
  }
  result.foreign.push({ ...found, reason });
}

/** `chain` of every row from scratch: parents come before children when rows are taken by their start. */
function setChains(index: IndexDb): void {
  const rows = index.all().sort((a, b) => a.start - b.start);
  const whole = new Set<string>();
  for (const row of rows) {
    const chain = row.kvBytes > 0 && (row.parent === '' || whole.has(row.parent));
    if (chain) whole.add(row.hash);
    if ((row.chain === 1) !== chain) index.setChain(row.hash, chain);
  }
}
