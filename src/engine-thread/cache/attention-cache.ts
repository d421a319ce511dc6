/** What attention layers ask of a cache of keys and values, whichever columns it keeps. */
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';
import type { LayerCache } from './layer-cache.ts';

/** Attention mask of one step: none needed, causal, or which columns each new token sees, [rows or 1, 1, length, columns]. */
export type Mask = null | 'causal' | Tensor;

export interface AttentionCache extends LayerCache {
  /** Caches of one sequence with equal keys hold the same columns: they share a mask. */
  readonly maskKey: string;
  /** The mask of a step of `length` new tokens. Ask before they are appended. */
  mask(length: number, s: Stream): Mask;
  /**
   * Appends keys and values [rows, heads, tokens, dim] of new tokens and returns those that attention sees, `columns` of them.
   *
   * The returned views must be gone (their scope closed) before the next evaluation after this one: a live view makes the
   * next update copy the whole buffer.
   */
  append(keys: Tensor, values: Tensor, tokens: number, s: Stream): { keys: Tensor; values: Tensor; columns: number };
}

export interface MaskSpec {
  /** Columns that attention sees, in order of time; the last `length` are the step's own. */
  readonly columns: number;
  readonly length: number;
  /** First columns of each row that belong to no token. */
  readonly padding: readonly number[];
  /** A token sees this many columns up to itself (all by default), and the first `keep` of all. */
  readonly window?: number;
  readonly keep?: number;
}

export function timeMask({ columns, length, padding, window = Infinity, keep = 0 }: MaskSpec, s: Stream): Mask {
  const padded = padding.some((count) => count > 0);
  if (!padded && columns <= window) return length === 1 ? null : 'causal';
  const column = mx.arange(0, columns, 1, 'int32', s);
  const position = mx.reshape(mx.arange(columns - length, columns, 1, 'int32', s), [length, 1], s);
  let seen = mx.lessEqual(column, position, s);
  if (columns > window) {
    const near = mx.greater(column, mx.sub(position, window, s), s);
    seen = mx.logicalAnd(seen, keep === 0 ? near : mx.logicalOr(near, mx.less(column, keep, s), s), s);
  }
  if (!padded) return mx.reshape(seen, [1, 1, length, columns], s);
  const begins = mx.reshape(mx.fromInts(Int32Array.from(padding), [padding.length]), [padding.length, 1, 1, 1], s);
  return mx.logicalAnd(mx.greaterEqual(column, begins, s), seen, s);
}

export interface ChunkMaskSpec {
  /** Columns held, those of the step included. */
  readonly columns: number;
  /** The first that attention is given. */
  readonly from: number;
  readonly length: number;
  readonly padding: readonly number[];
  readonly chunk: number;
}

/** A token sees those before it in its own chunk, counted from each row's first token. */
export function chunkMask({ columns, from, length, padding, chunk }: ChunkMaskSpec, s: Stream): Mask {
  const alike = padding.every((count) => count === padding[0]);
  const first = columns - length - padding[0]!;
  if (alike && Math.floor(first / chunk) === Math.floor((first + length - 1) / chunk)) return length === 1 ? null : 'causal';
  const rows = padding.length;
  const begins = mx.reshape(mx.fromInts(Int32Array.from(padding), [rows]), [rows, 1, 1, 1], s);
  const key = mx.sub(mx.arange(from, columns, 1, 'int32', s), begins, s);
  const query = mx.sub(mx.reshape(mx.arange(columns - length, columns, 1, 'int32', s), [length, 1], s), begins, s);
  const together = mx.equal(mx.floorDivide(key, chunk, s), mx.floorDivide(query, chunk, s), s);
  return mx.logicalAnd(mx.logicalAnd(together, mx.lessEqual(key, query, s), s), mx.greaterEqual(key, 0, s), s);
}
