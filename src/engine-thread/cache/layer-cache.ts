/**
 * What a model keeps of the tokens it has seen, layer by layer.
 *
 * A sequence owns its cache objects (one row). Several sequences decode together in a batch: their rows are merged into
 * cache objects with several rows, and taken out again (`extractRow`) when a row leaves or is captured. Padding exists
 * inside a batch only; it is never stored.
 *
 * Tensors here outlive scopes: they are retained, and freed by `release` or when an update replaces them. An update frees
 * the old handle before anything is evaluated, so that MLX may write in place.
 */
import { TidemarkError } from '../../shared/errors.ts';
import type { LayerState, StateElement, Dtype as StoredDtype, TensorBytes } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import { tensorReader } from '../mlx/read-many.ts';
import { type Dtype, dtypeBytes, type Stream, type Tensor } from '../mlx/types.ts';

export interface LayerCache {
  /** As stored in files, e.g. 'KVCache', 'ArraysCache'. */
  readonly className: string;
  readonly kind: 'kv' | 'rotating' | 'chunked' | 'arrays' | 'list' | 'compressed';
  /** Append-only by token: any range of it can be stored and restored. Otherwise the state is whole, at one token count. */
  readonly sliceable: boolean;
  /** Sequences in this object. */
  readonly rows: number;
  /** Tokens seen by each row. */
  readonly offsets: readonly number[];
  /** Tokens seen; of the longest row in a batch. */
  readonly offset: number;
  /** What must be evaluated for this cache to be up to date. Handles stay the cache's. */
  tensors(): Tensor[];
  /** Bytes of memory held. */
  bytes(): number;
  /**
   * Describes the state of tokens [from, to) for storing. Nothing is computed yet: evaluate the result's `tensors()`.
   *
   * @throws {TidemarkError} INVALID_ARGUMENT (details.reason 'offset') when this layer has not seen exactly (whole state)
   *   or at least (sliceable) `to` tokens, or when it holds a batch
   */
  capture(from: number, to: number, s: Stream): PendingCapture;
  /** An independent copy, evaluated. */
  clone(s: Stream): LayerCache;
  /** Forgets the last `n` tokens of every row; false (and nothing changes) when this kind cannot. */
  trim(n: number): boolean;
  /** One row of a batch as a cache of its own, evaluated. The batch is unchanged. */
  extractRow(row: number, s: Stream): LayerCache;
  /**
   * Fills this (fresh) cache from stored parts, evaluated.
   *
   * @param parts slices in order for a sliceable cache, else one whole state
   * @throws {TidemarkError} FORMAT_INVALID when they do not fit this layer or leave a gap
   */
  restore(parts: readonly LayerState[], tokenCount: number): void;
  release(): void;
}

/** One row of a cache, as what a batch is gathered from. */
export interface RowOf<Cache> {
  readonly cache: Cache;
  readonly row: number;
}

/**
 * Where one element of a captured state is read from: a tensor that the capture owns, bytes read in place, a plain number
 * (tensors are numbers too, so it comes wrapped), nothing, or a sub-state of a composite cache.
 */
export type CaptureElement = Tensor | TensorBytes | { readonly number: number } | null | readonly CaptureElement[];

/** What a capture knows besides: what its sub-states are, and the layer's own token count, compared once more when it is saved. */
export type CaptureFacts = Pick<LayerState, 'offset' | 'parts'>;

/** A capture between describing and reading: evaluate `tensors()`, then `toLayerState()`, copy, then `release()`. */
export class PendingCapture {
  readonly className: string;
  readonly #stored: LayerState['stored'];
  readonly #range: LayerState['range'];
  readonly #meta: LayerState['meta'];
  readonly #elements: CaptureElement[];
  readonly #facts: CaptureFacts;

  /** @param elements tensors among them belong to this object from now on */
  constructor(
    className: string,
    stored: LayerState['stored'],
    range: LayerState['range'],
    meta: LayerState['meta'],
    elements: CaptureElement[],
    facts: CaptureFacts = {},
  ) {
    this.className = className;
    this.#stored = stored;
    this.#range = range;
    this.#meta = meta;
    this.#elements = elements;
    this.#facts = facts;
    for (const t of this.tensors()) mx.retain(t);
  }

  /** What stands for this layer in the part of a block that does not hold it. */
  static placeholder(className: string): PendingCapture {
    return new PendingCapture(className, 'none', undefined, [], []);
  }

  /** To be evaluated before `toLayerState`; empty when the bytes are read where they lie. */
  tensors(): Tensor[] {
    return leaves(this.#elements).filter((element) => typeof element === 'number');
  }

  /** Bytes that `toLayerState` will offer; known before evaluation. */
  bytes(): number {
    return leaves(this.#elements).reduce<number>((sum, leaf) => {
      if (typeof leaf === 'number') return sum + mx.nbytes(leaf);
      return sum + (leaf !== null && 'byteLength' in leaf ? leaf.byteLength : 0);
    }, 0);
  }

  /** The state with `copyTo` reading MLX's buffers: valid after evaluation, until `release`. */
  toLayerState(): LayerState {
    const elements = this.#elements.map(stateElement);
    const state = { className: this.className, stored: this.#stored, meta: this.#meta, elements, ...this.#facts };
    return this.#range === undefined ? state : { ...state, range: this.#range };
  }

  release(): void {
    const owned = this.tensors();
    this.#elements.length = 0;
    for (const t of owned) mx.release(t);
  }
}

type Leaf = Exclude<CaptureElement, readonly CaptureElement[]>;

function isList(element: CaptureElement): element is readonly CaptureElement[] {
  return Array.isArray(element);
}

function leaves(elements: readonly CaptureElement[]): Leaf[] {
  return elements.flatMap((element) => (isList(element) ? leaves(element) : [element]));
}

function stateElement(element: CaptureElement): StateElement {
  if (element === null) return null;
  if (typeof element === 'number') return tensorBytes(element);
  if (isList(element)) return element.map(stateElement);
  return 'number' in element ? element.number : element;
}

const STORED: Partial<Record<Dtype, StoredDtype>> = {
  bool: 'BOOL',
  uint8: 'U8',
  uint16: 'U16',
  uint32: 'U32',
  uint64: 'U64',
  int8: 'I8',
  int16: 'I16',
  int32: 'I32',
  int64: 'I64',
  float16: 'F16',
  bfloat16: 'BF16',
  float32: 'F32',
  float64: 'F64',
  complex64: 'C64',
};

/** The name safetensors gives an MLX type. */
export function storedDtype(dtype: Dtype): StoredDtype {
  return STORED[dtype]!;
}

function tensorBytes(t: Tensor): TensorBytes {
  return {
    dtype: storedDtype(mx.dtypeOf(t)),
    shape: mx.shapeOf(t),
    byteLength: mx.nbytes(t),
    copyTo: (target, from) => mx.readBytes(t, from, target),
    bulk: { reader: tensorReader, eachPiece: (from, length, visit) => visit(t, from, length, 0) },
  };
}

const UNSIGNED: Readonly<Record<number, Dtype>> = { 1: 'uint8', 2: 'uint16', 4: 'uint32', 8: 'uint64' };

/**
 * A buffer of its own with the same bits, row-contiguous: later in-place updates of either never touch the other.
 *
 * MLX has no operation for that: `copy` shares the buffer, `contiguous` shares it where it can, and a `sliceUpdate` of
 * everything returns the update itself. An OR with 0 over the bits computes a new one.
 */
export function physicalCopy(t: Tensor, s: Stream): Tensor {
  const dtype = mx.dtypeOf(t);
  const bits = UNSIGNED[dtypeBytes(dtype)]!;
  return mx.scope(() => mx.keep(mx.view(mx.bitwiseOr(mx.view(mx.contiguous(t, s), bits, s), 0, s), dtype, s)));
}

export function offsetError(className: string, expected: string, received: number): TidemarkError {
  return new TidemarkError('INVALID_ARGUMENT', `${className}: the layer has seen ${received} tokens, the capture needs ${expected}.`, {
    details: { reason: 'offset', className, expected, received },
  });
}

export function restoreError(className: string, what: string): TidemarkError {
  return new TidemarkError('FORMAT_INVALID', `A stored ${className} does not fit this model: ${what}.`, { details: { className } });
}

export function mergeError(className: string, what: string): TidemarkError {
  return new TidemarkError('INVALID_ARGUMENT', `${className}: ${what}.`, { details: { reason: 'batch', className } });
}

/** Refuses to store a batch: rows have paddings of their own, stored state has none. */
export function requireSingleRow(cache: LayerCache): void {
  if (cache.rows === 1) return;
  throw new TidemarkError('INVALID_ARGUMENT', `${cache.className}: a batch of ${cache.rows} rows cannot be captured; extract the row first.`, {
    details: { reason: 'batch', className: cache.className, rows: cache.rows },
  });
}
