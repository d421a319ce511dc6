/**
 * A sparse indexer: small heads score every position for each token, and attention sees only the best of them.
 *
 * Its keys are kept with those of the attention layer it belongs to. While no more positions than it keeps exist, it picks
 * nothing: all are seen.
 */
import type { KvCache } from '../cache/kv-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Tensor } from '../mlx/types.ts';
import type { Pass } from './decoder.ts';
import { topPicks } from './experts.ts';
import { applyMatrix, declareRows, finish, type Matrix } from './linear.ts';
import type { Deferred, Parameters } from './parameters.ts';
import type { Rope } from './rope.ts';

export interface IndexerOptions {
  readonly hidden: number;
  readonly queryRank: number;
  readonly heads: number;
  readonly headDim: number;
  /** Positions that a token attends to. */
  readonly keeps: number;
  readonly dtype: Dtype;
  readonly rope: Deferred<Rope>;
}

const NORM_EPS = 1e-5;

interface Weights {
  readonly query: Matrix;
  readonly key: Matrix;
  readonly perHead: Matrix;
  readonly norm: readonly [weight: Tensor, bias: Tensor];
  readonly rope: Rope;
}

export class Indexer {
  readonly #o: IndexerOptions;
  readonly #w: Weights;

  constructor(options: IndexerOptions, weights: Weights) {
    this.#o = options;
    this.#w = weights;
  }

  /** Index keys of new tokens, [batch, 1, length, headDim]. */
  keys(x: Tensor, offsets: readonly number[], pass: Pass): Tensor {
    const { batch, length, rows, device, s } = pass;
    const raw = mx.layerNorm(applyMatrix(this.#w.key, x, rows, device, s), ...this.#w.norm, NORM_EPS, s);
    return this.#rotate(mx.reshape(raw, [batch, 1, length, this.#o.headDim], s), offsets, pass);
  }

  /**
   * What `seen` leaves of the columns, cut down to the best; unchanged while there are few.
   *
   * @param low the queries before they are projected up
   * @param index keys of all columns [batch, 1, total, headDim]; `cache` has the new tokens already
   */
  narrow(x: Tensor, low: Tensor, index: Tensor, total: number, seen: Tensor | null, cache: KvCache, pass: Pass): Tensor | null {
    const { batch, length, rows, device, s } = pass;
    const { heads, headDim, keeps } = this.#o;
    if (total <= keeps) return seen;
    const before = cache.offsets.map((offset) => offset - length);
    const raw = mx.reshape(applyMatrix(this.#w.query, low, rows, device, s), [batch, length, heads, headDim], s);
    const q = this.#rotate(mx.transpose(raw, [0, 2, 1, 3], s), before, pass);
    const scores = mx.maximum(mx.matmul(q, mx.swapaxes(index, -1, -2, s), s), 0, s);
    const weights = mx.mul(applyMatrix(this.#w.perHead, x, rows, device, s), heads ** -0.5 * headDim ** -0.5, s);
    const byHead = mx.expandDims(mx.swapaxes(mx.reshape(weights, [batch, length, heads], s), 1, 2, s), -1, s);
    let best = mx.reshape(mx.sum(mx.mul(scores, byHead, s), 1, false, s), [batch * length, total], s);
    const visible = seen === null ? null : mx.reshape(mx.broadcastTo(seen, [batch, 1, length, total], s), [batch * length, total], s);
    if (visible !== null) best = mx.where(visible, best, -Infinity, s);
    const picks = topPicks(best, keeps, total, batch * length, s);
    const none = mx.full([batch * length, total], 0, 'bool', s);
    const picked = mx.putAlongAxis(none, picks, mx.full([batch * length, keeps], 1, 'bool', s), -1, s);
    const both = visible === null ? picked : mx.logicalAnd(picked, visible, s);
    return mx.reshape(both, [batch, 1, length, total], s);
  }

  #rotate(t: Tensor, offsets: readonly number[], pass: Pass): Tensor {
    const { rope } = this.#w;
    return pass.shared(rope, () => rope.prepare(offsets, pass))(t);
  }
}

export function declareIndexer(params: Parameters, path: string, options: IndexerOptions): Deferred<Indexer> {
  const { hidden, queryRank, heads, headDim } = options;
  const row = (name: string, out: number, width: number) => declareRows(params, { path: `${path}.${name}`, out }, width, false);
  const query = row('wq_b', heads * headDim, queryRank);
  const key = row('wk', headDim, hidden);
  const perHead = row('weights_proj', heads, hidden);
  const norm = (['weight', 'bias'] as const).map((name) => params.declare(`${path}.k_norm.${name}`, [headDim]));
  return (loader) =>
    new Indexer(options, {
      query: finish(query.read(loader), loader),
      key: finish(key.read(loader), loader),
      perHead: finish(perHead.read(loader), loader),
      norm: [loader.own(norm[0]!(loader)), loader.own(norm[1]!(loader))],
      rope: options.rope(loader),
    });
}
