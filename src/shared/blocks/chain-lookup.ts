/**
 * Which prefixes of a prompt are stored, by the index alone. Used by the store worker for a restore, and by an engine
 * through its own connection to know beforehand whether a restore is worth asking for.
 *
 * A restore point is the end of a stored block. It needs the kv part of every block up to there and the state part at its
 * end, as far as the model has such parts. Full blocks are found by their hash; a prompt's or message's end is a block of
 * fewer tokens, found among the children of the full block before it.
 */
import { createHash } from 'node:crypto';
import type { MissReason } from '../errors.ts';
import { ChainHasher, type ChainIdentity, tokenBytes } from './identity.ts';
import type { BlockRow, IndexDb } from './index-db.ts';

export interface PartNeeds {
  readonly kv: boolean;
  readonly state: boolean;
}

export interface LookupRequest extends ChainIdentity {
  readonly tokens: Uint32Array;
  /** Longest prefix wanted. */
  readonly maxTokens: number;
  readonly blockSize: number;
  readonly needs: PartNeeds;
}

export interface BlockRef {
  readonly hash: string;
  readonly parent: string;
  readonly start: number;
  readonly end: number;
}

export interface RestorePoint {
  readonly tokenCount: number;
  /** All blocks up to the point, first to last. */
  readonly chain: readonly BlockRef[];
}

export class ChainLookup {
  readonly #index: IndexDb;
  readonly #request: LookupRequest;
  readonly #hasher: ChainHasher;
  /** Hashes of all full blocks of the prompt, stored or not. */
  readonly #hashes: readonly string[];
  readonly #rows: { ref: BlockRef; row: BlockRow | null }[] = [];
  /** Full blocks that may be part of a point; cut when one turns out to be unusable. */
  #depth: number;

  constructor(index: IndexDb, request: LookupRequest) {
    this.#index = index;
    this.#request = request;
    this.#hasher = new ChainHasher(request);
    const limit = Math.min(request.maxTokens, request.tokens.length);
    const hashes = this.#hasher.fullBlocks(request.tokens.subarray(0, limit), request.blockSize);
    this.#hashes = hashes;
    for (const [i, hash] of hashes.entries()) {
      const row = index.get(hash);
      if (request.needs.kv && (row === null || row.kvBytes === 0)) break;
      this.#rows.push({ ref: { hash, parent: hashes[i - 1] ?? '', start: i * request.blockSize, end: (i + 1) * request.blockSize }, row });
    }
    this.#depth = this.#rows.length;
  }

  /** Hash of the block that would end at `tokenCount` of this prompt, or null when that is beyond what is asked for. */
  hashAt(tokenCount: number): string | null {
    const { tokens, maxTokens, blockSize } = this.#request;
    if (tokenCount > Math.min(maxTokens, tokens.length) || tokenCount <= 0) return null;
    const full = Math.floor(tokenCount / blockSize);
    if (tokenCount % blockSize === 0) return this.#hashes[full - 1] ?? null;
    return this.#hasher.block(this.#hashes[full - 1] ?? '', tokens.subarray(full * blockSize, tokenCount));
  }

  /** The full block at `depth` and all behind it are unusable. */
  cut(depth: number): void {
    this.#depth = Math.min(this.#depth, depth);
  }

  #qualifies(row: BlockRow | null): row is BlockRow {
    const { needs } = this.#request;
    return row !== null && (!needs.kv || row.kvBytes > 0) && (!needs.state || row.stateBytes > 0);
  }

  /** Stored blocks of fewer tokens behind the first `depth` full ones, longest first. */
  *#partials(depth: number): Generator<BlockRow, void, undefined> {
    const { tokens, maxTokens, blockSize, fingerprint } = this.#request;
    const parent = depth === 0 ? '' : this.#rows[depth - 1]!.ref.hash;
    const start = depth * blockSize;
    const hashes = new Map<number, string>();
    for (const row of this.#index.partialChildren(parent, fingerprint, blockSize, Math.min(maxTokens, tokens.length))) {
      if (row.start !== start || row.end <= start || !this.#qualifies(row)) continue;
      // The hash says whether it holds these very tokens, under the same salt and numerics class. Many prompts shorter than
      // a block may start the same model's chains: one hash for each length is enough.
      let hash = hashes.get(row.end);
      if (hash === undefined) {
        hash = this.#hasher.block(parent, tokens.subarray(start, row.end));
        hashes.set(row.end, hash);
      }
      if (hash === row.hash) yield row;
    }
  }

  /** Restore points, longest first. `cut` takes effect on what comes next. */
  *points(): Generator<RestorePoint, void, undefined> {
    for (let depth = this.#depth; depth >= 0; depth = Math.min(depth - 1, this.#depth)) {
      const chain = this.#rows.slice(0, depth).map(({ ref }) => ref);
      for (const { hash, parent, start, end } of this.#partials(depth)) {
        if (depth > this.#depth) break;
        yield { tokenCount: end, chain: [...chain, { hash, parent, start, end }] };
      }
      if (depth > 0 && depth <= this.#depth && this.#qualifies(this.#rows[depth - 1]!.row)) yield { tokenCount: depth * this.#request.blockSize, chain };
    }
  }

  /** Why nothing more is stored than what `points` gives. */
  reason(): { reason: MissReason; detail: string } {
    const { tokens, blockSize, fingerprint } = this.#request;
    const limit = Math.min(this.#request.maxTokens, tokens.length);
    const missing = this.#hashes[this.#rows.length];
    // Behind the last full block: the partial one that a repeat of this prompt would have used.
    const wanted = missing ?? this.hashAt(limit);
    if (wanted !== null && this.#index.wasEvicted(wanted)) return { reason: 'evicted', detail: `block ${wanted} was removed for space` };
    if (missing !== undefined) {
      if (this.#hashes.slice(this.#rows.length + 1).some((hash) => this.#index.get(hash) !== null))
        return { reason: 'gap', detail: `block ${missing} is missing, later ones are stored` };
    }
    if (this.#rows.length === 0 && limit >= blockSize) {
      const sha = createHash('sha256')
        .update(tokenBytes(tokens.subarray(0, blockSize)))
        .digest('hex');
      const others = this.#index.rootsWithTokens(sha);
      if (others.length > 0)
        return {
          reason: 'fingerprint',
          detail: others.some((other) => other.fingerprint === fingerprint)
            ? 'the same tokens are stored under another salt or numerics class'
            : 'the same tokens are stored by another model or configuration',
        };
    }
    return {
      reason: 'absent',
      detail: this.#rows.length === 0 ? 'nothing is stored for this prefix' : `nothing is stored behind token ${this.#rows.length * blockSize}`,
    };
  }
}
