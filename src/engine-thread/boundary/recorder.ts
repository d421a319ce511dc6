/**
 * What one sequence stores: at each boundary the block's rows of every sliceable layer and, where the model has any,
 * the fixed state at the block's end.
 *
 * Engine thread only. One evaluation covers everything a boundary needs, then bytes are copied into shared memory and
 * the MLX arrays are let go at once; nothing lazy ever crosses a thread. Order: check offsets → evaluate → hand over.
 *
 * A pass that is known to end at a boundary is announced before it is computed: what the boundary needs is evaluated with
 * the pass, and all that does not depend on its result (hash, lookup, file headers, room) is done while it runs. What is
 * left for the engine thread afterwards is the copy. Without an announcement the same happens in `capture`, one after another.
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
import { evaluate, releaseAll } from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';

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
  /** The caches are not written to any more. */
  finished: boolean;
  /** To be called when the state's bytes are copied: its arrays are let go before anybody waits. */
  stateCopied: () => void;
}

/** What a sink has done for a block before its bytes were there. Used up by a `put` that accepts, released otherwise. */
export interface PreparedBlock {
  release(): void;
}

export interface BlockSink {
  /** Does what can be done while the block's bytes are still being computed. Never waits, never throws. */
  prepare(block: CapturedBlock): PreparedBlock | null;
  /**
   * Hands the block over; its bytes are copied when this returns. A refusal is counted by the sink. `mayWait` is false while
   * others decode: the engine then never waits for room.
   */
  put(block: CapturedBlock, mayWait: boolean, prepared: PreparedBlock | null): 'accepted' | DropReason;
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
  /** Length of the prompt: one token before its end is where an exact repeat of it resumes. */
  promptTokens: number;
  requestId: string;
  requestNo: number;
  hasFixedState: boolean;
}

/** What goes along with a forward pass. */
export interface PassCompanion {
  /** The pass is built: tensors to be evaluated with it. */
  built(): readonly Tensor[];
  /** The pass is being computed. */
  running(): void;
}

/** A block on its way: described, not yet handed over. */
interface Draft {
  readonly start: number;
  readonly end: number;
  readonly hash: string;
  readonly parent: string;
  readonly ids: Uint32Array;
  kv: PendingCapture[];
  readonly state: PendingCapture[] | null;
  /** Tensors that they own, until they are let go. */
  readonly kvTensors: Tensor[];
  readonly stateTensors: Tensor[];
  block: CapturedBlock | null;
  /** The store has it already. */
  stored: boolean;
  prepared: PreparedBlock | null;
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
  /** The answer has ended: nothing is written to the caches any more. */
  #finished = false;
  /** Of the pass that is being computed. */
  #announced: Draft | null = null;
  /** With persist 'finish', the prompt's end: its state is gone from the live caches when the request ends. */
  #kept: Draft | null = null;

  constructor(parts: RecorderParts) {
    this.#parts = parts;
  }

  /** The caches were restored up to here: everything before is stored. Called before the first capture. */
  resumeAt(tokenCount: number, tokens: readonly number[]): void {
    this.#recorded = tokenCount;
    this.#extendChain(tokens, tokenCount);
  }

  /** The pass about to be built ends at boundary `at`. Null when nothing is stored there. Follow it with `capture` of the same. */
  announce(caches: readonly LayerCache[], tokens: readonly number[], at: number): PassCompanion | null {
    this.#forget();
    if (this.#closed || this.#parts.persist !== 'boundary' || at <= this.#recorded) return null;
    return {
      built: () => {
        this.#extendChain(tokens, at);
        const drafted = this.#draft(caches, tokens, this.#startOf(at), at, true);
        // `capture` will find the same fault, and count it.
        if (drafted === null || 'error' in drafted) return [];
        this.#announced = drafted;
        return tensorsOf(drafted);
      },
      running: () => {
        const draft = this.#announced;
        if (draft === null) return;
        draft.stored = this.#parts.sink.has(draft.hash, draft.state !== null);
        if (!draft.stored) draft.prepared = this.#parts.sink.prepare(this.#blockOf(draft));
      },
    };
  }

  /** Boundary at `at`: caches hold at least `at` tokens, fixed state exactly `at`. */
  capture(caches: readonly LayerCache[], tokens: readonly number[], at: number, mayWait: boolean): void {
    if (at <= this.#recorded) return;
    if (this.#parts.persist !== 'boundary') {
      if (at === this.#parts.promptTokens - 1) this.#keep(caches, tokens, at);
      return;
    }
    const draft = this.#announced;
    if (draft === null || draft.end !== at || this.#holes.length > 0) return this.#record(caches, tokens, at, true, mayWait);
    this.#announced = null;
    this.#settle(at, this.#handOver(draft, mayWait));
  }

  #keep(caches: readonly LayerCache[], tokens: readonly number[], at: number): void {
    this.#extendChain(tokens, at);
    const draft = this.#draft(caches, tokens, this.#startOf(at), at, true);
    // A fault that lasts is met again, and counted, at the end of the request.
    if (draft === null || 'error' in draft) return;
    try {
      const lazy = tensorsOf(draft);
      if (lazy.length > 0) evaluate(lazy);
      this.#kept = draft;
    } catch (error) {
      release(draft);
      this.#failed(error);
    }
  }

  /** The sequence may live in other cache objects than when the draft was made: it has been in a batch since. What is kept of it is its state. */
  #rereadRows(draft: Draft, caches: readonly LayerCache[]): void {
    releaseAll(draft.kvTensors);
    draft.kv = captureKv(caches, draft.start, draft.end, this.#parts.stream) ?? caches.map((cache) => PendingCapture.placeholder(cache.className));
    draft.kvTensors.push(...draft.kv.flatMap((capture) => capture.tensors()));
    draft.block = null;
    if (draft.kvTensors.length > 0) evaluate(draft.kvTensors);
  }

  /** End of the answer. With persist 'finish' this is where everything is stored. `mayWait`: nobody else has work. */
  finish(caches: readonly LayerCache[], tokens: readonly number[], computed: number, aborted: boolean, mayWait: boolean): void {
    if (this.#closed) return;
    this.#finished = true;
    if (this.#parts.persist === 'finish') {
      const { blockSize } = this.#parts;
      for (let at = this.#recorded - (this.#recorded % blockSize) + blockSize; at < computed; at += blockSize) this.#record(caches, tokens, at, false, mayWait);
      const kept = this.#kept;
      this.#kept = null;
      if (kept !== null) this.#storeKept(kept, caches, mayWait);
    } else if (aborted) {
      return;
    }
    if (computed > this.#recorded) this.#record(caches, tokens, computed, true, mayWait);
  }

  #storeKept(kept: Draft, caches: readonly LayerCache[], mayWait: boolean): void {
    const { sink } = this.#parts;
    try {
      this.#rereadRows(kept, caches);
    } catch (error) {
      release(kept);
      this.#failed(error);
      return;
    }
    kept.stored = sink.has(kept.hash, kept.state !== null);
    if (!kept.stored) kept.prepared = sink.prepare(this.#blockOf(kept));
    this.#handOver(kept, mayWait);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#forget();
    if (this.#kept !== null) release(this.#kept);
    this.#kept = null;
    this.#parts.sink.requestEnded(this.#parts.requestId);
  }

  #record(caches: readonly LayerCache[], tokens: readonly number[], at: number, withState: boolean, mayWait: boolean): void {
    const { blockSize, sink } = this.#parts;
    this.#extendChain(tokens, at);
    // Holes come first, and must not find the room taken that this boundary has prepared for itself.
    if (this.#holes.length > 0) this.#forget();
    for (let hole = this.#holes[0]; hole !== undefined; hole = this.#holes[0]) {
      if (this.#put(caches, tokens, hole * blockSize, (hole + 1) * blockSize, false, mayWait) !== 'accepted') {
        sink.dropped('backpressure');
        if (at % blockSize === 0) this.#holes.push(at / blockSize - 1);
        return;
      }
      this.#holes.shift();
    }
    this.#settle(at, this.#put(caches, tokens, this.#startOf(at), at, withState, mayWait));
  }

  #settle(at: number, outcome: 'accepted' | DropReason): void {
    const { blockSize } = this.#parts;
    if (outcome === 'accepted') {
      this.#recorded = at;
    } else if (at % blockSize === 0) {
      this.#holes.push(at / blockSize - 1);
    }
  }

  #put(caches: readonly LayerCache[], tokens: readonly number[], start: number, end: number, withState: boolean, mayWait: boolean): 'accepted' | DropReason {
    const { sink, hasFixedState } = this.#parts;
    const { hash } = this.#identify(tokens, start, end);
    if (sink.has(hash, withState && hasFixedState)) return 'accepted';
    const draft = this.#draft(caches, tokens, start, end, withState);
    if (draft === null) {
      sink.dropped('offset');
      return 'offset';
    }
    if ('error' in draft) return this.#failed(draft.error);
    try {
      const lazy = tensorsOf(draft);
      if (lazy.length > 0) evaluate(lazy);
    } catch (error) {
      release(draft);
      return this.#failed(error);
    }
    // Placed before its bytes are handed over, a block may be leased.
    if (this.#finished) draft.prepared = sink.prepare(this.#blockOf(draft));
    return this.#handOver(draft, mayWait);
  }

  /** It costs this boundary, not the answer: the live caches were evaluated before. A lost device ends the engine. */
  #failed(error: unknown): DropReason {
    const code = error instanceof TidemarkError ? error.code : null;
    if (code === 'DEVICE_LOST') throw error;
    const reason = code === 'TENSOR_POISONED' ? 'poisoned' : 'capture';
    this.#parts.sink.dropped(reason, error instanceof Error ? error.message : String(error));
    return reason;
  }

  /** Everything of the draft is evaluated. */
  #handOver(draft: Draft, mayWait: boolean): 'accepted' | DropReason {
    try {
      if (draft.stored) return 'accepted';
      const outcome = this.#parts.sink.put(this.#blockOf(draft), mayWait, draft.prepared);
      if (outcome === 'accepted') draft.prepared = null;
      return outcome;
    } finally {
      release(draft);
    }
  }

  /** Null when a layer's own count disagrees: it must not be stored under this one (conformance 34). An error of the capture is given back. */
  #draft(caches: readonly LayerCache[], tokens: readonly number[], start: number, end: number, withState: boolean): Draft | { error: unknown } | null {
    const { stream, hasFixedState } = this.#parts;
    const stateWanted = withState && hasFixedState;
    if (caches.some((cache) => (cache.sliceable ? cache.offset < end : stateWanted && cache.offset !== end))) return null;
    let kv: PendingCapture[] = [];
    try {
      kv = captureKv(caches, start, end, stream) ?? caches.map((cache) => PendingCapture.placeholder(cache.className));
      const state = stateWanted ? captureState(caches, end, stream) : null;
      const kvTensors = kv.flatMap((capture) => capture.tensors());
      const stateTensors = state?.flatMap((capture) => capture.tensors()) ?? [];
      return { start, end, ...this.#identify(tokens, start, end), kv, state, kvTensors, stateTensors, block: null, stored: false, prepared: null };
    } catch (error) {
      for (const capture of kv) capture.release();
      return { error };
    }
  }

  #blockOf(draft: Draft): CapturedBlock {
    const { start, end, hash, parent, ids, kv, state } = draft;
    const { requestId, requestNo } = this.#parts;
    draft.block ??= {
      requestId,
      requestNo,
      start,
      end,
      hash,
      parent,
      tokens: ids,
      kv: kv.map((capture) => capture.toLayerState()),
      state: state?.map((capture) => capture.toLayerState()) ?? null,
      finished: this.#finished,
      stateCopied: () => releaseAll(draft.stateTensors),
    };
    return draft.block;
  }

  #identify(tokens: readonly number[], start: number, end: number): { hash: string; parent: string; ids: Uint32Array } {
    const { hasher, blockSize } = this.#parts;
    const parent = start === 0 ? '' : this.#chain[start / blockSize - 1]!;
    const ids = new Uint32Array(tokens.slice(start, end));
    const hash = end - start === blockSize ? this.#chain[end / blockSize - 1]! : hasher.block(parent, ids);
    return { hash, parent, ids };
  }

  #startOf(end: number): number {
    return end - 1 - ((end - 1) % this.#parts.blockSize);
  }

  /** The announced pass has failed, or was another one. */
  #forget(): void {
    if (this.#announced !== null) release(this.#announced);
    this.#announced = null;
  }

  #extendChain(tokens: readonly number[], upTo: number): void {
    const { hasher, blockSize } = this.#parts;
    for (let end = (this.#chain.length + 1) * blockSize; end <= upTo; end += blockSize) {
      this.#chain.push(hasher.block(this.#chain.at(-1) ?? '', new Uint32Array(tokens.slice(end - blockSize, end))));
    }
  }
}

function tensorsOf(draft: Draft): Tensor[] {
  return [...draft.kvTensors, ...draft.stateTensors];
}

/** Once: both lists are empty afterwards. */
function release(draft: Draft): void {
  draft.prepared?.release();
  releaseAll(draft.kvTensors);
  releaseAll(draft.stateTensors);
}
