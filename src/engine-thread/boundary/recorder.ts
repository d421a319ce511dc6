/**
 * What one sequence stores: at each boundary the block's rows of every sliceable layer and, where the model has any,
 * the fixed state at the block's end.
 *
 * Engine thread only. One evaluation covers everything a boundary needs, then bytes are copied into shared memory and
 * the MLX arrays are let go at once; nothing lazy ever crosses a thread. Order: check offsets → evaluate → hand over.
 *
 * A block that could not be stored (backpressure) leaves a hole that would make all later ones unreachable. Its rows
 * are still in the live cache, so the hole is filled, without state, before the next boundary.
 */
import type { Persist } from '../../host/api.ts';
import type { ChainHasher } from '../../shared/blocks/identity.ts';
import { type DropReason, TidemarkError } from '../../shared/errors.ts';
import type { LayerState } from '../../shared/layer-state.ts';
import { type LayerCache, PendingCapture } from '../cache/layer-cache.ts';
import { captureKv, captureState } from '../cache/registry.ts';
import { evaluate } from '../mlx/ops.ts';
import type { Stream } from '../mlx/types.ts';

/** One block as the stores take it. */
export interface CapturedBlock {
  requestId: string;
  requestNo: number;
  start: number;
  end: number;
  hash: string;
  parent: string;
  tokens: Uint32Array;
  /** One entry for each layer: the block's rows of those that are cut by token, a placeholder for the others. */
  kv: LayerState[];
  /** Layers captured whole; null when the model has none or the block carries no state. */
  state: LayerState[] | null;
  /** False while others decode: the engine then never waits for room. */
  mayWait: boolean;
}

export interface BlockSink {
  /** Hands the block over; its bytes are copied when this returns. A refusal is counted by the sink. */
  put(block: CapturedBlock): 'accepted' | DropReason;
  /** True when the block is stored already with the parts it would get now. */
  has(hash: string, withState: boolean): boolean;
  /** Counts a boundary that was not handed over; `detail` is the message of an error that came in between. */
  dropped(reason: DropReason, detail?: string): void;
  /** The request has ended: staging of boundaries that nobody promotes is removed. */
  requestEnded(requestId: string): void;
}

export interface RecorderParts {
  sink: BlockSink;
  hasher: ChainHasher;
  stream: Stream;
  blockSize: number;
  persist: Exclude<Persist, 'off'>;
  requestId: string;
  requestNo: number;
  hasFixedState: boolean;
}

export class BoundaryRecorder {
  readonly #parts: RecorderParts;
  /** Hashes of the full blocks from the first token on. */
  readonly #chain: string[] = [];
  /** Full blocks that are not stored, lowest first. */
  readonly #holes: number[] = [];
  /** Tokens that need no recording any more. */
  #recorded = 0;
  #closed = false;

  constructor(parts: RecorderParts) {
    this.#parts = parts;
  }

  /** The caches were restored up to here: everything before is stored. Called before the first capture. */
  resumeAt(tokenCount: number, tokens: readonly number[]): void {
    this.#recorded = tokenCount;
    this.#extendChain(tokens, tokenCount);
  }

  /** Boundary at `at`: caches hold at least `at` tokens, fixed state exactly `at`. */
  capture(caches: readonly LayerCache[], tokens: readonly number[], at: number, mayWait: boolean): void {
    if (this.#parts.persist !== 'boundary' || at <= this.#recorded) return;
    this.#record(caches, tokens, at, true, mayWait);
  }

  /** End of the answer. With persist 'finish' this is where everything is stored. `mayWait`: nobody else has work. */
  finish(caches: readonly LayerCache[], tokens: readonly number[], computed: number, aborted: boolean, mayWait: boolean): void {
    if (this.#closed) return;
    if (this.#parts.persist === 'finish') {
      const { blockSize } = this.#parts;
      for (let at = this.#recorded - (this.#recorded % blockSize) + blockSize; at < computed; at += blockSize) this.#record(caches, tokens, at, false, mayWait);
    } else if (aborted) {
      return;
    }
    if (computed > this.#recorded) this.#record(caches, tokens, computed, true, mayWait);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#parts.sink.requestEnded(this.#parts.requestId);
  }

  #record(caches: readonly LayerCache[], tokens: readonly number[], at: number, withState: boolean, mayWait: boolean): void {
    const { blockSize, sink } = this.#parts;
    this.#extendChain(tokens, at);
    for (let hole = this.#holes[0]; hole !== undefined; hole = this.#holes[0]) {
      if (this.#put(caches, tokens, hole * blockSize, (hole + 1) * blockSize, false, mayWait) !== 'accepted') {
        sink.dropped('backpressure');
        if (at % blockSize === 0) this.#holes.push(at / blockSize - 1);
        return;
      }
      this.#holes.shift();
    }
    const start = at - 1 - ((at - 1) % blockSize);
    const outcome = this.#put(caches, tokens, start, at, withState, mayWait);
    if (outcome === 'accepted') {
      this.#recorded = at;
    } else if (at % blockSize === 0) {
      this.#holes.push(at / blockSize - 1);
    }
  }

  #put(caches: readonly LayerCache[], tokens: readonly number[], start: number, end: number, withState: boolean, mayWait: boolean): 'accepted' | DropReason {
    const { sink, hasher, blockSize, stream, requestId, requestNo, hasFixedState } = this.#parts;
    const parent = start === 0 ? '' : this.#chain[start / blockSize - 1]!;
    const ids = Uint32Array.from(tokens.slice(start, end));
    const hash = hasher.block(parent, ids);
    const stateWanted = withState && hasFixedState;
    if (sink.has(hash, stateWanted)) return 'accepted';
    // A layer whose own count disagrees must not be stored under this one (conformance 34).
    if (caches.some((cache) => (cache.sliceable ? cache.offset < end : stateWanted && cache.offset !== end))) {
      sink.dropped('offset');
      return 'offset';
    }
    let kv: PendingCapture[] | null = null;
    let state: PendingCapture[] | null = null;
    try {
      kv = captureKv(caches, start, end, stream);
      state = stateWanted ? captureState(caches, end, stream) : null;
      evaluate([...(kv ?? []), ...(state ?? [])].flatMap((capture) => capture.tensors()));
      return sink.put({
        requestId,
        requestNo,
        start,
        end,
        hash,
        parent,
        tokens: ids,
        kv: (kv ?? caches.map((cache) => PendingCapture.placeholder(cache.className))).map((capture) => capture.toLayerState()),
        state: state?.map((capture) => capture.toLayerState()) ?? null,
        mayWait,
      });
    } catch (error) {
      // It costs this boundary, not the answer: the live caches were evaluated before. A lost device ends the engine.
      const code = error instanceof TidemarkError ? error.code : null;
      if (code === 'DEVICE_LOST') throw error;
      const reason = code === 'TENSOR_POISONED' ? 'poisoned' : 'capture';
      sink.dropped(reason, error instanceof Error ? error.message : String(error));
      return reason;
    } finally {
      for (const capture of [...(kv ?? []), ...(state ?? [])]) capture.release();
    }
  }

  #extendChain(tokens: readonly number[], upTo: number): void {
    const { hasher, blockSize } = this.#parts;
    for (let end = (this.#chain.length + 1) * blockSize; end <= upTo; end += blockSize) {
      this.#chain.push(hasher.block(this.#chain.at(-1) ?? '', Uint32Array.from(tokens.slice(end - blockSize, end))));
    }
  }
}
