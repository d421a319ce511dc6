/** The indexer of compressed attention: which pooled rows each token sees. One layer may narrow the choice of later ones to blocks. */
import * as mx from '../mlx/ops.ts';
import type { Tensor } from '../mlx/types.ts';
import { type Handed, turnTail } from './compressed-attention.ts';
import { firstPicks } from './experts.ts';
import { applyMatrix, type Matrix } from './linear.ts';
import type { Rope } from './rope.ts';
import { throughFp4 } from './small-floats.ts';
import type { Step } from './step.ts';

export interface PickerOptions {
  readonly heads: number;
  readonly headDim: number;
  readonly ropeDim: number;
  readonly ratio: number;
  /** Pooled rows that a token sees. */
  readonly keeps: number;
  /** This layer chooses blocks of pooled rows for itself and those behind it; null: it uses what was chosen. */
  readonly candidates: { readonly blocks: number; readonly size: number } | null;
  readonly normEps: number;
}

export interface PickerWeights {
  readonly query: Matrix;
  readonly perHead: Matrix;
  /** Of a layer that pools: how a pooled row becomes an index key. */
  readonly key: { readonly matrix: Matrix; readonly norm: Tensor } | null;
  readonly rope: Rope;
}

export class Picker {
  readonly #o: PickerOptions;
  readonly #w: PickerWeights;

  constructor(options: PickerOptions, weights: PickerWeights) {
    this.#o = options;
    this.#w = weights;
  }

  /** Index keys of pooled rows [1, count, width]; null where this layer makes none. */
  keys(latent: Tensor, count: number, first: number, rope: Rope, step: Step): Tensor | null {
    const { key } = this.#w;
    if (key === null) return null;
    const { device, s } = step;
    const { headDim, ropeDim, normEps } = this.#o;
    const width = mx.shapeOf(latent)[2]!;
    const raw = mx.rmsNorm(applyMatrix(key.matrix, mx.reshape(latent, [count, width], s), count, device, s), key.norm, normEps, s);
    const turned = turnTail(mx.reshape(raw, [1, 1, count, headDim], s), rope, ropeDim, first, { ...step, length: count, rows: count });
    return throughFp4(mx.reshape(turned, [1, count, headDim], s), 32, 'power', s);
  }

  /** Sets `handed.picked`. */
  pick(x: Tensor, low: Tensor, start: number, handed: Handed, step: Step): void {
    const { length, device, s } = step;
    const { heads, headDim, ropeDim, ratio, keeps } = this.#o;
    const total = handed.index === null ? 0 : mx.shapeOf(handed.index)[1]!;
    if (total === 0) {
      handed.picked = null;
      return;
    }
    const raw = mx.transpose(mx.reshape(applyMatrix(this.#w.query, low, length, device, s), [1, length, heads, headDim], s), [0, 2, 1, 3], s);
    const q = throughFp4(turnTail(raw, this.#w.rope, ropeDim, start, step), 32, 'power', s);
    const float = (t: Tensor) => mx.astype(t, 'float32', s);
    const keys = mx.swapaxes(mx.expandDims(float(handed.index!), 1, s), -1, -2, s);
    const perHead = mx.mul(mx.maximum(mx.matmul(float(q), keys, s), 0, s), headDim ** -0.5, s); // [1, heads, length, total]
    const weights = mx.mul(float(applyMatrix(this.#w.perHead, x, length, device, s)), heads ** -0.5, s);
    const byHead = mx.reshape(mx.swapaxes(weights, 0, 1, s), [1, heads, length, 1], s);
    let scores = mx.reshape(mx.sum(mx.mul(perHead, byHead, s), 1, false, s), [length, total], s);
    // A token sees the groups that end at or before it.
    const ended = Int32Array.from({ length }, (_, i) => Math.floor((start + 1 + i) / ratio));
    const counts = mx.fromInts(ended, [length, 1]);
    const visible = mx.less(mx.arange(0, total, 1, 'int32', s), counts, s);
    scores = mx.where(visible, scores, -Infinity, s);
    if (this.#o.candidates !== null) handed.candidates = this.#blocks(scores, total, ended, length, step);
    else if (handed.candidates !== null) scores = mx.where(handed.candidates, scores, -Infinity, s);
    const k = Math.min(keeps, total);
    handed.picked = mx.logicalAnd(mark(firstPicks(scores, k, length, s), mx.full([length, k], 1, 'bool', s), length, total, s), visible, s);
  }

  /** Pooled rows of the best blocks [length, total]; the newest block is always among them, for it is not full yet. */
  #blocks(scores: Tensor, total: number, ended: Int32Array, length: number, { s }: Step): Tensor {
    const { blocks, size } = this.#o.candidates!;
    const count = Math.ceil(total / size);
    const room = count * size - total;
    const padded = room === 0 ? scores : mx.concatenate([scores, mx.full([length, room], -Infinity, 'float32', s)], 1, s);
    const best = mx.max(mx.reshape(padded, [length, count, size], s), -1, false, s);
    const newest = mx.fromInts(
      ended.map((rows) => (rows > 0 ? Math.floor((rows - 1) / size) : -1)),
      [length, 1],
    );
    const ranked = mx.where(mx.equal(mx.arange(0, count, 1, 'int32', s), newest, s), Infinity, best, s);
    const k = Math.min(blocks, count);
    const chosen = firstPicks(ranked, k, length, s);
    const reachable = mx.greater(mx.takeAlongAxis(ranked, chosen, -1, s), -Infinity, s);
    const open = mx.repeat(mark(chosen, reachable, length, count, s), size, 1, s);
    return mx.slice(open, [0, 0], [length, total], s);
  }
}

/** False everywhere but at the picks, where it is what `values` says. */
function mark(picks: Tensor, values: Tensor, rows: number, total: number, s: Step['s']): Tensor {
  return mx.putAlongAxis(mx.full([rows, total], 0, 'bool', s), picks, values, -1, s);
}
