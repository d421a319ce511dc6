/**
 * Compressed attention: a token sees the last `window` tokens as they are, and of all before it pooled groups of `ratio` tokens,
 * of which an indexer picks the best. Some layers pool, some pick, the others use what the last such layer made.
 *
 * Keys and values are the same vectors. Rows of a batch are computed one after the other: their groups do not close together.
 */
import { CompressedCache, type CompressedElement, type CompressedRow, type CompressedShape } from '../cache/compressed-cache.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Mixer } from './block.ts';
import type { Picker } from './compressed-index.ts';
import type { Pass } from './decoder.ts';
import { applyMatrix, type Matrix } from './linear.ts';
import type { Rope } from './rope.ts';
import { throughFp4, throughFp8 } from './small-floats.ts';
import type { Step } from './step.ts';

export interface CompressedOptions {
  readonly hidden: number;
  readonly heads: number;
  readonly headDim: number;
  readonly ropeDim: number;
  readonly groups: number;
  readonly groupRank: number;
  readonly window: number;
  /** Tokens of a pooled group; 0: the window is all. */
  readonly ratio: number;
  /** Width of index keys where this layer makes them, else 0. */
  readonly indexDim: number;
  readonly normEps: number;
  readonly dtype: Dtype;
}

export interface CompressedRopes {
  readonly forward: Rope;
  readonly inverse: Rope;
  /** Positions count groups. */
  readonly pooled: Rope | null;
}

export interface PoolWeights {
  readonly values: Matrix;
  readonly gates: Matrix;
  readonly norm: Tensor;
}

export interface CompressedWeights {
  readonly queryDown: Matrix;
  readonly queryNorm: Tensor;
  readonly queryUp: Matrix;
  readonly values: Matrix;
  readonly valueNorm: Tensor;
  /** [groups, heads * headDim / groups, groupRank] */
  readonly outDown: Tensor;
  readonly outUp: Matrix;
  readonly sinks: Tensor;
  readonly ropes: CompressedRopes;
  readonly pool: PoolWeights | null;
  readonly picker: Picker | null;
}

/** What layers of one step hand on to those behind them, for one row. */
export interface Handed {
  pool: Tensor | null;
  poolRows: number;
  index: Tensor | null;
  candidates: Tensor | null;
  /** Pooled rows that each token sees [length, poolRows]. */
  picked: Tensor | null;
}

export class CompressedAttention implements Mixer {
  readonly #o: CompressedOptions;
  readonly #w: CompressedWeights;

  constructor(options: CompressedOptions, weights: CompressedWeights) {
    this.#o = options;
    this.#w = weights;
  }

  makeCaches(): LayerCache[] {
    const { window, headDim, indexDim, dtype, ratio } = this.#o;
    const pools = this.#w.pool !== null;
    const elements: CompressedShape['elements'] = {
      window: { width: headDim, dtype },
      pool: pools ? { width: headDim, dtype } : null,
      index: pools && indexDim > 0 ? { width: indexDim, dtype } : null,
      openValues: pools ? { width: headDim, dtype: 'float32' } : null,
      openGates: pools ? { width: headDim, dtype: 'float32' } : null,
    };
    return [new CompressedCache({ window, ratio: pools ? ratio : 0, elements })];
  }

  forward(x: Tensor, caches: readonly LayerCache[], pass: Pass): Tensor {
    const { sequences } = caches[0] as CompressedCache;
    const { length, s } = pass;
    const outs = sequences.map((row, i) => {
      const own = sequences.length === 1 ? x : mx.slice(x, [i * length, 0], [(i + 1) * length, this.#o.hidden], s);
      const handed = pass.shared(`handed ${i}`, (): Handed => ({ pool: null, poolRows: 0, index: null, candidates: null, picked: null }));
      return this.#row(own, row, handed, { ...pass, batch: 1, rows: length });
    });
    return outs.length === 1 ? outs[0]! : mx.concatenate(outs, 0, s);
  }

  #row(x: Tensor, row: CompressedRow, handed: Handed, step: Step): Tensor {
    const { length, device, s } = step;
    const { heads, headDim, ropeDim, window, ratio, normEps, dtype, groups, groupRank } = this.#o;
    const start = row.offset;
    const apply = (m: Matrix, t: Tensor) => applyMatrix(m, t, length, device, s);
    const low = mx.rmsNorm(apply(this.#w.queryDown, x), this.#w.queryNorm, normEps, s);
    const byHead = mx.transpose(mx.reshape(apply(this.#w.queryUp, low), [1, length, heads, headDim], s), [0, 2, 1, 3], s);
    const { forward, inverse } = this.#w.ropes;
    const queries = turnTail(byHead, forward, ropeDim, start, step);
    const plain = mx.reshape(mx.rmsNorm(apply(this.#w.values, x), this.#w.valueNorm, normEps, s), [1, 1, length, headDim], s);
    const values = mx.reshape(throughFp8(turnTail(plain, forward, ropeDim, start, step), 32, s), [1, length, headDim], s);

    const before = row.rowsOf('window');
    const near = append(row, 'window', values, s);
    const kept = Math.min(before + length, window);
    row.set('window', mx.contiguous(mx.slice(near, [0, before + length - kept, 0], [1, before + length, headDim], s), s), kept);
    row.offset = start + length;

    if (ratio > 0 && this.#w.pool !== null) this.#pool(x, this.#w.pool, row, handed, start, step);
    if (ratio > 0 && this.#w.picker !== null) this.#w.picker.pick(x, low, start, handed, step);
    let keys = near;
    let seen = nearMask(before, length, window, s);
    if (ratio > 0 && handed.pool !== null && handed.picked !== null && handed.poolRows > 0) {
      keys = mx.concatenate([near, handed.pool], 1, s);
      seen = mx.concatenate([seen, handed.picked], 1, s);
    }
    // Scores in float32 whatever the model computes in.
    const float = (t: Tensor) => mx.astype(t, 'float32', s);
    const keyed = mx.expandDims(float(keys), 1, s);
    const total = mx.shapeOf(seen)[1]!;
    const mask = mx.reshape(seen, [1, 1, length, total], s);
    const mixed = mx.astype(mx.sdpa(float(queries), keyed, keyed, headDim ** -0.5, { mask, sinks: this.#w.sinks }, s), dtype, s);
    const turned = turnTail(mixed, inverse, ropeDim, start, step);
    const grouped = mx.reshape(mx.transpose(turned, [0, 2, 1, 3], s), [length, groups, 1, (heads * headDim) / groups], s);
    return apply(this.#w.outUp, mx.reshape(mx.matmul(grouped, this.#w.outDown, s), [length, groups * groupRank], s));
  }

  /** Closes the groups that the new tokens complete. */
  #pool(x: Tensor, weights: PoolWeights, row: CompressedRow, handed: Handed, start: number, step: Step): void {
    const { length, device, s } = step;
    const { headDim, ropeDim, ratio, normEps, dtype } = this.#o;
    const wide = mx.astype(x, 'float32', s);
    const project = (m: Matrix) => mx.reshape(mx.astype(applyMatrix(m, wide, length, device, s), 'float32', s), [1, length, headDim], s);
    const open = row.rowsOf('openValues');
    const all = open + length;
    const full = all - (all % ratio);
    const [values, gates] = [append(row, 'openValues', project(weights.values), s), append(row, 'openGates', project(weights.gates), s)];
    const rest = (t: Tensor) => mx.contiguous(mx.slice(t, [0, full, 0], [1, all, headDim], s), s);
    const first = (start - open) / ratio;
    row.set('openValues', rest(values), all - full);
    row.set('openGates', rest(gates), all - full);
    if (full > 0) {
      const count = full / ratio;
      const groupsOf = (t: Tensor) => mx.reshape(mx.slice(t, [0, 0, 0], [1, full, headDim], s), [1, count, ratio, headDim], s);
      const sum = mx.sum(mx.mul(groupsOf(values), mx.softmax(groupsOf(gates), 2, false, s), s), 2, false, s);
      const latent = mx.rmsNorm(mx.astype(sum, dtype, s), weights.norm, normEps, s);
      const turned = turnTail(mx.reshape(latent, [1, 1, count, headDim], s), this.#w.ropes.pooled!, ropeDim, first, { ...step, length: count, rows: count });
      const pooled = throughFp4(mx.reshape(turned, [1, count, headDim], s), 16, 'e4m3', s);
      row.set('pool', append(row, 'pool', pooled, s), first + count);
      const index = this.#w.picker?.keys(latent, count, first, this.#w.ropes.pooled!, step) ?? null;
      if (index !== null) row.set('index', append(row, 'index', index, s), first + count);
    }
    handed.pool = row.get('pool');
    handed.poolRows = row.rowsOf('pool');
    if (this.#o.indexDim > 0) handed.index = row.get('index');
  }
}

function append(row: CompressedRow, element: CompressedElement, t: Tensor, s: Stream): Tensor {
  const old = row.get(element);
  return old === null ? t : mx.concatenate([old, t], 1, s);
}

/** Rotates the last `ropeDim` dimensions of each head, in float32. t [1, heads, length, width]. */
export function turnTail(t: Tensor, rope: Rope, ropeDim: number, offset: number, step: Step): Tensor {
  const { s } = step;
  const shape = mx.shapeOf(t);
  const width = shape[3]!;
  const head = shape.slice(0, 3);
  const tail = mx.astype(mx.slice(t, [0, 0, 0, width - ropeDim], [...head, width], s), 'float32', s);
  const turned = mx.astype(rope.prepare([offset], step)(tail), mx.dtypeOf(t), s);
  return width === ropeDim ? turned : mx.concatenate([mx.slice(t, [0, 0, 0, 0], [...head, width - ropeDim], s), turned], -1, s);
}

/** Which of the window's rows and the new ones each token sees, [length, before + length]. */
function nearMask(before: number, length: number, window: number, s: Stream): Tensor {
  const column = mx.arange(0, before + length, 1, 'int32', s);
  const position = mx.reshape(mx.arange(before, before + length, 1, 'int32', s), [length, 1], s);
  return mx.logicalAnd(mx.lessEqual(column, position, s), mx.greater(column, mx.sub(position, window, s), s), s);
}
