/**
 * The index: which blocks are stored, how large, how they hang together and when each was last used.
 *
 * It is an accelerator. Everything in it but `last_used` and `pinned` can be read again from file headers, so a damaged
 * one is set aside and rebuilt, and where no file can be had (read-only folder, full disk) it lives in memory.
 * One writer: the store worker. Engines read through connections of their own. Only SQLite opens the index's files:
 * another descriptor on them, closed anywhere in the process, would drop SQLite's locks.
 */
import { createRequire } from 'node:module';
import type { BlockPart } from '../layer-state.ts';

const Database = createRequire(import.meta.url)('better-sqlite3') as typeof import('better-sqlite3');
type Connection = import('better-sqlite3').Database;

export const SCHEMA_VERSION = 1;

/** Readers hardly ever meet a lock in WAL mode, and an engine between two steps has no time for one. */
const READER_WAIT_MS = 50;

const SCHEMA = `
CREATE TABLE IF NOT EXISTS blocks (
  hash TEXT PRIMARY KEY, parent TEXT NOT NULL, fingerprint TEXT NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
  tokens_sha TEXT NOT NULL,
  kv_bytes INTEGER NOT NULL DEFAULT 0, state_bytes INTEGER NOT NULL DEFAULT 0,
  chain INTEGER NOT NULL DEFAULT 0, last_used INTEGER NOT NULL, pinned INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS blocks_parent ON blocks(parent);
CREATE INDEX IF NOT EXISTS blocks_used ON blocks(last_used, "end" DESC);
CREATE INDEX IF NOT EXISTS blocks_tokens ON blocks(tokens_sha) WHERE parent = '';
CREATE TABLE IF NOT EXISTS evicted (seq INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE);
`;

/** How many blocks that were removed for space are remembered, the latest ones. */
const EVICTED_REMEMBERED = 8192;

/** One block as the index knows it. A part that is not stored has 0 bytes; bytes are what the file occupies on disk. */
export interface BlockRow {
  hash: string;
  parent: string;
  fingerprint: string;
  start: number;
  end: number;
  /** Of a first block: SHA-256 over its tokens alone, which tells "other model, same text" from "never seen". Else ''. */
  tokensSha: string;
  kvBytes: number;
  stateBytes: number;
  /** 1 when the kv of this block and of all its parents is stored and synced. */
  chain: number;
  /** Grows with each use; not a time. */
  lastUsed: number;
  pinned: number;
}

const COLUMNS =
  'hash, parent, fingerprint, start, "end", tokens_sha AS tokensSha, kv_bytes AS kvBytes, state_bytes AS stateBytes, chain, last_used AS lastUsed, pinned';

/** True for errors that mean the index file itself is no good, as opposed to a full disk or a busy lock. */
export function isDamage(error: unknown): boolean {
  const code = String((error as { code?: unknown } | null)?.code ?? '');
  return code.startsWith('SQLITE_CORRUPT') || code.startsWith('SQLITE_NOTADB') || code === 'SQLITE_SCHEMA' || code === 'SQLITE_FORMAT';
}

export class IndexDb {
  readonly inMemory: boolean;
  readonly #db: Connection;
  readonly #statements = new Map<string, import('better-sqlite3').Statement>();
  #clock: number;

  /** Opens or creates `path` (null: in memory) for writing. Throws SQLite's error when that cannot be done or the file is damaged. */
  constructor(path: string | null, options: { readOnly?: boolean } = {}) {
    this.inMemory = path === null;
    this.#db = new Database(path ?? ':memory:', options.readOnly === true ? { readonly: true, fileMustExist: true, timeout: READER_WAIT_MS } : {});
    try {
      if (options.readOnly !== true) this.#prepare();
      else if (this.#db.pragma('user_version', { simple: true }) !== SCHEMA_VERSION)
        throw Object.assign(new Error('index of another version'), { code: 'SQLITE_NOTADB' });
      this.#clock = (this.#get('SELECT max(last_used) AS top FROM blocks') as { top: number | null }).top ?? 0;
    } catch (error) {
      this.#db.close();
      throw error;
    }
  }

  #prepare(): void {
    if (!this.inMemory) {
      this.#db.pragma('journal_mode = WAL');
      // Losing the last rows to a power cut is fine: the walk at start finds the files. Losing consistency is not.
      this.#db.pragma('synchronous = NORMAL');
      // A small journal: it counts towards the cache limit, and an 8 MB disk must do.
      this.#db.pragma('wal_autocheckpoint = 128');
      this.#db.pragma('journal_size_limit = 524288');
    }
    this.#db.pragma('busy_timeout = 2000');
    const version = this.#db.pragma('user_version', { simple: true });
    if (version !== 0 && version !== SCHEMA_VERSION) throw Object.assign(new Error(`index has schema ${String(version)}`), { code: 'SQLITE_NOTADB' });
    const check = this.#db.pragma('quick_check(1)', { simple: true });
    if (check !== 'ok') throw Object.assign(new Error(`index is damaged: ${String(check)}`), { code: 'SQLITE_CORRUPT' });
    this.#db.exec(SCHEMA);
    this.#db.pragma(`user_version = ${SCHEMA_VERSION}`);
  }

  #statement(sql: string): import('better-sqlite3').Statement {
    let statement = this.#statements.get(sql);
    if (statement === undefined) {
      statement = this.#db.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #get(sql: string, ...params: unknown[]): unknown {
    return this.#statement(sql).get(...params);
  }

  #run(sql: string, ...params: unknown[]): number {
    return this.#statement(sql).run(...params).changes;
  }

  /** All or nothing. */
  transaction<T>(act: () => T): T {
    return this.#db.transaction(act)();
  }

  get(hash: string): BlockRow | null {
    return (this.#get(`SELECT ${COLUMNS} FROM blocks WHERE hash = ?`, hash) as BlockRow | undefined) ?? null;
  }

  children(hash: string): BlockRow[] {
    return this.#statement(`SELECT ${COLUMNS} FROM blocks WHERE parent = ? ORDER BY "end" DESC, hash`).all(hash) as BlockRow[];
  }

  /** Children of `parent` that are shorter than a block and end at `maxEnd` or before, longest first. */
  partialChildren(parent: string, fingerprint: string, blockSize: number, maxEnd: number): BlockRow[] {
    const sql = `SELECT ${COLUMNS} FROM blocks WHERE parent = ? AND fingerprint = ? AND "end" - start < ? AND "end" <= ? ORDER BY "end" DESC`;
    return this.#statement(sql).all(parent, fingerprint, blockSize, maxEnd) as BlockRow[];
  }

  /** First blocks that hold the same tokens, under whatever model or keys. */
  rootsWithTokens(tokensSha: string): BlockRow[] {
    return this.#statement(`SELECT ${COLUMNS} FROM blocks WHERE tokens_sha = ? AND parent = ''`).all(tokensSha) as BlockRow[];
  }

  /** Adds a block, or sizes of parts that a known block did not have. Recency is renewed. */
  put(row: Omit<BlockRow, 'chain' | 'lastUsed' | 'pinned'> & { lastUsed?: number }): void {
    this.#run(
      `INSERT INTO blocks (hash, parent, fingerprint, start, "end", tokens_sha, kv_bytes, state_bytes, last_used) VALUES (?,?,?,?,?,?,?,?,?)
       ON CONFLICT(hash) DO UPDATE SET kv_bytes = max(kv_bytes, excluded.kv_bytes), state_bytes = max(state_bytes, excluded.state_bytes), last_used = max(last_used, excluded.last_used)`,
      row.hash,
      row.parent,
      row.fingerprint,
      row.start,
      row.end,
      row.tokensSha,
      row.kvBytes,
      row.stateBytes,
      row.lastUsed ?? this.tick(),
    );
  }

  /** What the walk found on disk for a known block. */
  setBytes(hash: string, part: BlockPart, bytes: number): void {
    this.#run(`UPDATE blocks SET ${part}_bytes = ? WHERE hash = ?`, bytes, hash);
  }

  setChain(hash: string, chain: boolean): void {
    this.#run('UPDATE blocks SET chain = ? WHERE hash = ?', chain ? 1 : 0, hash);
  }

  /** The next recency value. All blocks of one use get the same, so that a chain ages as one. */
  tick(): number {
    this.#clock += 1;
    return this.#clock;
  }

  touch(hashes: readonly string[]): void {
    const now = this.tick();
    this.transaction(() => {
      for (const hash of hashes) this.#run('UPDATE blocks SET last_used = ? WHERE hash = ?', now, hash);
    });
  }

  pin(hash: string, pinned: boolean): void {
    this.#run('UPDATE blocks SET pinned = ? WHERE hash = ?', pinned ? 1 : 0, hash);
  }

  remove(hash: string): boolean {
    return this.#run('DELETE FROM blocks WHERE hash = ?', hash) > 0;
  }

  /** A block was removed for space: a later miss can say so, also an engine's own lookup, also after a restart. */
  rememberEvicted(hash: string): void {
    this.#run('INSERT OR REPLACE INTO evicted (hash) VALUES (?)', hash);
    this.#run(`DELETE FROM evicted WHERE seq <= (SELECT max(seq) FROM evicted) - ${EVICTED_REMEMBERED}`);
  }

  /** It is stored again. */
  forgetEvicted(hash: string): void {
    this.#run('DELETE FROM evicted WHERE hash = ?', hash);
  }

  wasEvicted(hash: string): boolean {
    return this.#get('SELECT 1 FROM evicted WHERE hash = ?', hash) !== undefined;
  }

  /** Up to `limit` blocks that nothing hangs on and that are not skipped: least recently used first, deeper ones first among equals. */
  leastUsedLeaves(skip: (hash: string) => boolean, limit: number): BlockRow[] {
    const sql = `SELECT ${COLUMNS} FROM blocks b WHERE pinned = 0 AND NOT EXISTS (SELECT 1 FROM blocks c WHERE c.parent = b.hash) ORDER BY last_used, "end" DESC`;
    const rows: BlockRow[] = [];
    for (const row of this.#statement(sql).iterate() as IterableIterator<BlockRow>) {
      if (!skip(row.hash)) rows.push(row);
      if (rows.length >= limit) break;
    }
    return rows;
  }

  /** Leaves of the most recent use. */
  newestTips(): Set<string> {
    const sql = `SELECT hash FROM blocks b WHERE last_used = (SELECT max(last_used) FROM blocks) AND NOT EXISTS (SELECT 1 FROM blocks c WHERE c.parent = b.hash)`;
    return new Set((this.#statement(sql).all() as { hash: string }[]).map((row) => row.hash));
  }

  /** Every row, for the walk at start and for tools. */
  all(): BlockRow[] {
    return this.#statement(`SELECT ${COLUMNS} FROM blocks`).all() as BlockRow[];
  }

  totals(): { blocks: number; bytes: number } {
    return this.#get('SELECT count(*) AS blocks, coalesce(sum(kv_bytes + state_bytes), 0) AS bytes FROM blocks') as { blocks: number; bytes: number };
  }

  close(): void {
    this.#db.close();
  }
}
