/**
 * The worker's side of `tidemark/store`: puts blocks of an app's own arrays, gets back the longest stored prefix.
 *
 * Any worker of the app, one thread for each session. `put` copies and returns, it waits only while too many bytes are on
 * their way (2 s by default); `get` waits for the disk, up to its deadline. Neither may be called on the main thread.
 */
import { isMainThread, type MessagePort } from 'node:worker_threads';
import { type BlockUnit, publishBlock } from '../engine-thread/boundary/publish.ts';
import { RestoreClient } from '../engine-thread/boundary/restore.ts';
import { BoundarySnapshotStore } from '../engine-thread/boundary/snapshot-store.ts';
import { ChainHasher } from '../shared/blocks/identity.ts';
import { type DropReason, type MissReason, TidemarkError } from '../shared/errors.ts';
import type { ProcessShared } from '../shared/process-shared.ts';
import { attachSession, type Session, type SessionMemory } from '../shared/session/index.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import { arraysOf, layersOf, type NamedArray, type NamedArrays, placeholders } from './named-arrays.ts';

/** Made by `Store.ticket()` on the main thread; post it to the worker that will use it, its port in the transfer list. */
export interface StoreTicket {
  readonly shared: ProcessShared;
  readonly memory: SessionMemory;
  readonly hubPort: MessagePort;
  readonly mode: 'writer' | 'read-only';
  readonly blockSize: number;
  readonly fingerprint: string;
  readonly extraKeys: readonly string[];
}

export interface BlockToPut {
  /** Names the sequence in events and in staging. */
  requestId: string;
  /** Every token from the first to the boundary; the block is the last one, full or partial. */
  tokens: Uint32Array;
  /** The block's own rows of arrays that grow with the tokens. */
  rows: NamedArrays;
  /** Arrays of fixed size, as they are at the boundary. With them the block is a point to go on from. */
  state?: NamedArrays;
}

export type PutResult = { ok: true } | { ok: false; reason: DropReason | 'failed' | 'read-only'; detail: string };

export type GetResult =
  | {
      tokenCount: number /** Block by block, first to last. */;
      rows: Record<string, NamedArray>[];
      state: Record<string, NamedArray> | null;
      missReason: MissReason | null;
    }
  | { tokenCount: 0; missReason: MissReason; detail: string };

export class StoreClient {
  readonly #ticket: StoreTicket;
  readonly #session: Session;
  readonly #snapshots: BoundarySnapshotStore;
  readonly #restores: RestoreClient;
  readonly #hasher: ChainHasher;

  constructor(ticket: StoreTicket, name = 'store-client') {
    if (isMainThread)
      throw new TidemarkError('LOCK_ON_MAIN_THREAD', 'attachStore was called on the main thread. Use the ticket in a Worker: put and get may wait.');
    const self = new ThreadTable(ticket.shared.threads).enter('other', name);
    this.#ticket = ticket;
    this.#session = attachSession(ticket.memory, self, { post: (mail) => ticket.hubPort.postMessage(mail) });
    this.#snapshots = new BoundarySnapshotStore(this.#session);
    this.#restores = new RestoreClient(ticket.memory.restore, this.#session.storeBell);
    this.#hasher = new ChainHasher(ticket);
  }

  /** Hands the block over; its bytes are copied when this returns. Reaches the disk later (`durable` event on the main thread). */
  put(block: BlockToPut): PutResult {
    const { blockSize, fingerprint, mode } = this.#ticket;
    if (mode === 'read-only') return { ok: false, reason: 'read-only', detail: 'another process writes this folder, or it cannot be written' };
    const { tokens, requestId, rows, state } = block;
    const end = tokens.length;
    if (end === 0) throw new TidemarkError('INVALID_ARGUMENT', 'put: tokens is empty. A block ends behind at least one token.');
    const start = end - 1 - ((end - 1) % blockSize);
    const parent = this.#hasher.fullBlocks(tokens.subarray(0, start), blockSize).at(-1) ?? '';
    const own = tokens.slice(start);
    const hash = this.#hasher.block(parent, own);
    if (state !== undefined) {
      const layers = [...placeholders(rows), ...layersOf(state, 'whole', [start, end])];
      const saved = this.#snapshots.save(requestId, end, layers, { blockSize, block: { hash, parent, tokens: own, fingerprint } });
      if (!saved.ok) return saved;
    }
    const kv = [...layersOf(rows, 'slice', [start, end]), ...placeholders(state ?? {})];
    const unit: BlockUnit = { requestNo: 0, requestId, tokenCount: end, hash, parent, tokens: own, blockSize, fingerprint, kv, hasState: state !== undefined };
    const queued = publishBlock(this.#session, unit);
    return queued === 'queued' ? { ok: true } : { ok: false, reason: queued, detail: 'the block was not accepted' };
  }

  /**
   * The longest stored prefix of `tokens`. `needsState`: only points with state count (default), else rows alone do.
   * Blocks this thread until everything is there or `deadlineMs` (default 10,000) has passed.
   */
  get(tokens: Uint32Array, options: { deadlineMs?: number; needsState?: boolean; maxTokens?: number } = {}): GetResult {
    const { blockSize, fingerprint, extraKeys } = this.#ticket;
    const ticket = this.#restores.begin({
      tokens,
      maxTokens: options.maxTokens ?? tokens.length,
      blockSize,
      fingerprint,
      extraKeys,
      needs: { kv: true, state: options.needsState ?? true },
      deadlineMs: options.deadlineMs ?? 10_000,
    });
    const rows: { start: number; end: number; arrays: Record<string, NamedArray> }[] = [];
    const states = new Map<number, Record<string, NamedArray>>();
    for (;;) {
      const next = ticket.next(1_000);
      if (next.type === 'part') {
        if (next.part === 'kv') rows.push({ start: next.start, end: next.end, arrays: arraysOf(next.layers) });
        else states.set(next.end, arraysOf(next.layers));
        next.release();
      } else if (next.type === 'miss') {
        return { tokenCount: 0, missReason: next.reason, detail: next.detail };
      } else if (next.type === 'done') {
        const { tokenCount } = next;
        return { tokenCount, rows: chainOf(rows, tokenCount), state: states.get(tokenCount) ?? null, missReason: next.reason };
      }
    }
  }

  /** The sequence has ended: staged state that no block took is removed. */
  end(requestId: string): void {
    this.#snapshots.cleanupRequest(requestId);
  }

  /** From now on `put` is refused; what was accepted is still written. */
  close(): void {
    this.#snapshots.close();
    this.#ticket.hubPort.close();
    this.#session.self.leave();
  }
}

/** The blocks that lead to `tokenCount`; a tail that turned out unusable may have been sent before its replacement. */
function chainOf(rows: readonly { start: number; end: number; arrays: Record<string, NamedArray> }[], tokenCount: number): Record<string, NamedArray>[] {
  const chain: Record<string, NamedArray>[] = [];
  let at = tokenCount;
  for (const block of rows.toReversed()) {
    if (block.end !== at) continue;
    chain.unshift(block.arrays);
    at = block.start;
  }
  return chain;
}
