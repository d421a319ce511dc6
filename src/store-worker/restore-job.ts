/**
 * One restore on the store worker, as a generator: it yields after each part and whenever the region is full, so that the
 * drain loop can serve other sessions meanwhile. Every byte is verified before it is handed over.
 *
 * All or nothing, longest first: when a part fails, its point and everything behind it are out, and the next shorter point
 * is tried; parts that were handed over and belong to it as well are not read again. A failed part's block goes from index
 * and disk together with its descendants, unless another version or model wrote it; a failed state part goes alone, since
 * the keys and values of its block are still good.
 */
import { openBlockFile } from '../shared/blocks/block-file.ts';
import { type BlockRef, ChainLookup, type RestorePoint } from '../shared/blocks/chain-lookup.ts';
import type { ImageMiss } from '../shared/blocks/image-parse.ts';
import { continuesEarlier } from '../shared/blocks/layer-tree.ts';
import type { RestoreResult } from '../shared/blocks/restore-channel.ts';
import type { RestoreGiver } from '../shared/blocks/restore-giver.ts';
import type { RestoreRequest } from '../shared/blocks/restore-request.ts';
import type { BlockPart } from '../shared/layer-state.ts';
import { now } from '../shared/sync/clock.ts';
import type { BlockStore } from './block-store.ts';
import { isIndexDamage } from './store-index.ts';

/** 'wait': nothing can go on until the engine releases a part; 'step': call again soon. */
export type RestoreYield = 'wait' | 'step';

export interface RestoreOutcome extends RestoreResult {
  /** Bytes read and verified. */
  readonly bytes: number;
}

/** Longest wait for units of the same prompt that are queued. */
const QUEUED_WAIT_MS = 2000;

export type IsQueued = (hashAt: (tokenCount: number) => string | null) => boolean;

export class RestoreJob {
  readonly #isQueued: IsQueued;
  readonly #store: BlockStore;
  readonly #giver: RestoreGiver;
  readonly #request: RestoreRequest;
  readonly #number: number;
  /** The first part that failed: why less is restored than was stored. */
  #failure: ImageMiss | null = null;
  #bytes = 0;
  /** Parts handed over; of a state, whether the blocks before hold rows of it. */
  readonly #handedOver = new Map<string, { readonly continues: boolean }>();
  /** Blocks of the point that was restored, for the caller to renew their recency. */
  restored: readonly string[] = [];
  /** Blocks this restore is about to read; eviction leaves them alone. */
  readonly using = new Set<string>();

  /** `isQueued`: whether a unit that has not been stored yet is of this prompt (`hashAt` tells its hash there). */
  constructor(store: BlockStore, giver: RestoreGiver, number: number, request: RestoreRequest, isQueued: IsQueued = () => false) {
    this.#store = store;
    this.#isQueued = isQueued;
    this.#giver = giver;
    this.#number = number;
    this.#request = request;
  }

  *run(): Generator<RestoreYield, RestoreOutcome, undefined> {
    for (let attempt = 1; ; attempt += 1) {
      const index = this.#store.index.db;
      try {
        return yield* this.#attempt();
      } catch (error) {
        // The index turned out to be damaged, or was replaced while this restore slept: look again in the new one.
        const replaced = this.#store.index.db !== index;
        if (attempt === 3 || (!replaced && !isIndexDamage(error))) throw error;
        if (!replaced) this.#store.index.reopen('damage');
      }
    }
  }

  *#attempt(): Generator<RestoreYield, RestoreOutcome, undefined> {
    const lookup = yield* this.#lookup();
    if (typeof lookup === 'string') return this.#miss(lookup);
    for (const point of lookup.points()) {
      this.using.clear();
      for (const block of point.chain) this.using.add(block.hash);
      const outcome = yield* this.#handOver(point, lookup);
      if (outcome === 'failed') continue;
      if (outcome !== 'ok') return this.#miss(outcome);
      this.restored = point.chain.map((block) => block.hash);
      const why = this.#failure ?? this.#shortfall(lookup, point);
      return { tokenCount: point.tokenCount, reason: why?.reason ?? null, detail: why?.detail ?? '', bytes: this.#bytes };
    }
    const { reason, detail } = this.#failure ?? lookup.reason();
    return { tokenCount: 0, reason, detail, bytes: this.#bytes };
  }

  /** Blocks of this very prompt may be on their way to the disk, from the request before: they are waited for, within a limit. */
  *#lookup(): Generator<RestoreYield, ChainLookup | 'deadline' | 'cancelled', undefined> {
    const until = now() + QUEUED_WAIT_MS;
    for (;;) {
      const lookup = new ChainLookup(this.#store.index.db, this.#request);
      if (now() > until || !this.#isQueued((tokenCount) => lookup.hashAt(tokenCount))) return lookup;
      yield 'wait';
      if (this.#giver.isCancelled(this.#number)) return 'cancelled';
      if (now() > this.#request.deadline) return 'deadline';
    }
  }

  /** A reason worth telling although something was restored. That nothing more was ever stored is none. */
  #shortfall(lookup: ChainLookup, point: RestorePoint): { reason: ImageMiss['reason']; detail: string } | null {
    if (point.tokenCount >= this.#request.maxTokens) return null;
    const why = lookup.reason();
    return why.reason === 'absent' ? null : why;
  }

  #miss(reason: 'deadline' | 'cancelled' | 'busy'): RestoreOutcome {
    const detail =
      reason === 'deadline' ? 'the restore took longer than its deadline' : reason === 'busy' ? 'a block file does not fit into the restore region' : '';
    return { tokenCount: 0, reason, detail, bytes: this.#bytes };
  }

  *#handOver(point: RestorePoint, lookup: ChainLookup): Generator<RestoreYield, 'ok' | 'failed' | 'deadline' | 'cancelled' | 'busy', undefined> {
    const { needs, blockSize } = this.#request;
    if (needs.kv) {
      for (const [i, block] of point.chain.entries()) {
        const result = yield* this.#part('kv', block, i);
        if (result === 'ok') continue;
        if (typeof result === 'string') return result;
        this.#refuse(result, 'kv', block);
        // A partial block ends its own point only; a full one ends everything behind it as well.
        if (block.end - block.start === blockSize) lookup.cut(i);
        return 'failed';
      }
    }
    return needs.state ? yield* this.#states(point) : 'ok';
  }

  /** The state at the point, and before it as many as it takes its rows from. */
  *#states({ chain }: RestorePoint): Generator<RestoreYield, 'ok' | 'failed' | 'deadline' | 'cancelled' | 'busy', undefined> {
    for (let i = chain.length - 1; i >= 0; i -= 1) {
      const block = chain[i]!;
      const result = yield* this.#part('state', block, i);
      if (typeof result !== 'string') {
        this.#refuse(result, 'state', block);
        return 'failed';
      }
      if (result !== 'ok' || !this.#handedOver.get(`state ${block.hash}`)!.continues) return result;
    }
    return 'ok';
  }

  *#part(part: BlockPart, block: BlockRef, blockIndex: number): Generator<RestoreYield, 'ok' | 'deadline' | 'cancelled' | 'busy' | ImageMiss, undefined> {
    const key = `${part} ${block.hash}`;
    if (this.#handedOver.has(key)) return 'ok';
    const file = openBlockFile(this.#store.files, this.#store.paths.block(block.hash, part));
    if ('ok' in file) return file;
    try {
      let place = this.#giver.allocate(file.byteLength);
      for (;;) {
        if (this.#giver.isCancelled(this.#number)) return 'cancelled';
        if (now() > this.#request.deadline) return 'deadline';
        if (place === 'never') return 'busy';
        if (place !== 'wait') break;
        yield 'wait';
        place = this.#giver.allocate(file.byteLength);
      }
      const { hash: blockHash, parent: parentHash, start, end } = block;
      const image = file.readVerified(place, { blockHash, parentHash, part, start, end, fingerprint: this.#request.fingerprint });
      if (!image.ok) return image;
      this.#giver.publish({ part, blockIndex, start, end }, place);
      this.#bytes += file.byteLength;
      this.#handedOver.set(key, { continues: part === 'state' && continuesEarlier(image.layersJson) });
    } finally {
      file.close();
    }
    yield 'step';
    return 'ok';
  }

  /** Takes what failed out of the way, so that no later lookup meets it and it can be stored again. */
  #refuse(miss: ImageMiss, part: BlockPart, block: BlockRef): void {
    const wasEvicted = miss.reason === 'gap' && this.#store.wasEvicted(block.hash);
    this.#failure ??= { ...miss, reason: wasEvicted ? 'evicted' : miss.reason, detail: `${part} of block ${block.hash}: ${miss.detail}` };
    try {
      if (miss.reason === 'version' || miss.reason === 'fingerprint') this.#store.forget(block.hash);
      else if (part === 'kv') this.#store.discard(block.hash);
      else this.#store.discardState(block.hash);
    } catch (error) {
      // A full disk or a read-only one keeps the row; this restore goes on without the block all the same.
      if (isIndexDamage(error)) throw error;
      const message = `block ${block.hash} is unusable and could not be taken out of the index: ${String(error)}`;
      this.#store.emit({ type: 'note', code: 'CACHE_IO', message, details: { block: block.hash, reason: miss.reason } });
    }
  }
}
