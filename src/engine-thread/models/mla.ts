/**
 * Multi-head latent attention: what is cached is one latent for all heads and one rotated key, from which each head's keys
 * and values are made. A single token asks the latents directly; several tokens unfold them.
 *
 * Cache: a KVCache whose keys are latents and whose values are rotated keys. With an indexer (which picks the positions
 * that a token attends to) the index keys lie behind the rotated ones.
 */
import type { Mask } from '../cache/attention-cache.ts';
import { KvCache } from '../cache/kv-cache.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Mixer } from './block.ts';
import type { Pass } from './decoder.ts';
import { declareIndexer, type Indexer, type IndexerOptions } from './indexer.ts';
import { applyMatrix, declareMatrix, declareRows, finish, type Matrix, ownRows, type StoredRows } from './linear.ts';
import type { Deferred, Parameters } from './parameters.ts';
import type { Rope } from './rope.ts';
import { columns } from './step.ts';

export interface MlaOptions {
  readonly hidden: number;
  readonly heads: number;
  /** Null: queries are projected in one step. */
  readonly queryRank: number | null;
  readonly latent: number;
  readonly ropeDim: number;
  /** Width of a head's part that is not rotated. */
  readonly plainDim: number;
  readonly valueDim: number;
  readonly scale: number;
  readonly bias: boolean;
  readonly dtype: Dtype;
  readonly rope: Deferred<Rope>;
  readonly indexer: IndexerOptions | null;
}

/** Of the norms inside; the configuration's is for those outside. */
const NORM_EPS = 1e-6;

interface Weights {
  /** Down and up, or one. */
  readonly query: readonly Matrix[];
  readonly queryNorm: Tensor | null;
  readonly down: Matrix;
  readonly latentNorm: Tensor;
  /** [heads, latent, plainDim] */
  readonly embedQuery: StoredRows;
  /** [heads, valueDim, latent] */
  readonly unembed: StoredRows;
  readonly out: Matrix;
  readonly rope: Rope;
  readonly indexer: Indexer | null;
}

export class LatentAttention implements Mixer {
  readonly #o: MlaOptions;
  readonly #w: Weights;

  constructor(options: MlaOptions, weights: Weights) {
    this.#o = options;
    this.#w = weights;
  }

  makeCaches(): LayerCache[] {
    const { latent, ropeDim, indexer, dtype } = this.#o;
    return [new KvCache({ heads: 1, keyDim: latent, valueDim: ropeDim + (indexer?.headDim ?? 0), dtype })];
  }

  forward(x: Tensor, caches: readonly LayerCache[], pass: Pass): Tensor {
    const cache = caches[0] as KvCache;
    const { s, batch, length, rows, device } = pass;
    const { heads, latent, ropeDim, plainDim, valueDim, scale, dtype } = this.#o;
    const { rope, indexer } = this.#w;
    const apply = (m: Matrix, t: Tensor) => applyMatrix(m, t, rows, device, s);

    const [first, second] = this.#w.query as [Matrix, Matrix?];
    const low = second === undefined ? null : mx.rmsNorm(apply(first, x), this.#w.queryNorm, NORM_EPS, s);
    const headDim = plainDim + ropeDim;
    const q = mx.transpose(mx.reshape(low === null ? apply(first, x) : apply(second!, low), [batch, length, heads, headDim], s), [0, 2, 1, 3], s);
    const plain = mx.slice(q, [0, 0, 0, 0], [batch, heads, length, plainDim], s);
    const rotate = pass.shared(rope, () => rope.prepare(cache.offsets, pass));
    const turned = rotate(mx.slice(q, [0, 0, 0, plainDim], [batch, heads, length, headDim], s));
    const compressed = apply(this.#w.down, x);
    const newLatent = mx.reshape(mx.rmsNorm(columns(compressed, rows, 0, latent, s), this.#w.latentNorm, NORM_EPS, s), [batch, 1, length, latent], s);
    const newKey = rotate(mx.reshape(columns(compressed, rows, latent, latent + ropeDim, s), [batch, 1, length, ropeDim], s));
    const newIndex = indexer?.keys(x, cache.offsets, pass) ?? null;

    const mask = pass.shared(cache.maskKey, () => cache.mask(length, s));
    const stored = newIndex === null ? newKey : mx.concatenate([newKey, newIndex], -1, s);
    const { keys, values, columns: total } = cache.append(newLatent, stored, length, s);
    const part = (from: number, to: number) => mx.slice(values, [0, 0, 0, from], [batch, 1, total, to], s);
    const rotated = newIndex === null ? values : part(0, ropeDim);

    let seen = pass.shared(`all of ${cache.maskKey}`, () => boolMask(mask, length, total, s));
    if (indexer !== null) {
      const index = part(ropeDim, ropeDim + this.#o.indexer!.headDim);
      seen = indexer.narrow(x, low!, index, total, seen, cache, pass);
    }
    let scores = mx.matmul(mx.mul(turned, scale, s), mx.swapaxes(rotated, -1, -2, s), s);
    if (seen !== null) scores = mx.where(seen, scores, dtype === 'float16' ? -65504 : -3.3895e38, s);

    const mixed =
      length === 1
        ? this.#unfold(mx.sdpa(this.#perHead(plain, this.#w.embedQuery, true, s), keys, keys, scale, { mask: scores }, s), s)
        : mx.sdpa(plain, this.#perHead(keys, this.#w.embedQuery, false, s), this.#unfold(keys, s), scale, { mask: scores }, s);
    return apply(this.#w.out, mx.reshape(mx.transpose(mixed, [0, 2, 1, 3], s), [rows, heads * valueDim], s));
  }

  #unfold(t: Tensor, s: Stream): Tensor {
    return this.#perHead(t, this.#w.unembed, true, s);
  }

  /** x [batch, heads or 1, n, in] times each head's matrix, stored [heads, out, in] (or used the other way round). */
  #perHead(x: Tensor, { weight, scales, biases, spec }: StoredRows, transpose: boolean, s: Stream): Tensor {
    if (spec !== null) return mx.quantizedMatmul(x, weight, scales!, biases, { ...spec, transpose }, s);
    return mx.matmul(x, transpose ? mx.swapaxes(weight, -1, -2, s) : weight, s);
  }
}

/** Which columns are seen, as a tensor where any is not. */
function boolMask(mask: Mask, length: number, total: number, s: Stream): Tensor | null {
  if (mask !== 'causal') return mask;
  const position = mx.reshape(mx.arange(total - length, total, 1, 'int32', s), [length, 1], s);
  return mx.reshape(mx.lessEqual(mx.arange(0, total, 1, 'int32', s), position, s), [1, 1, length, total], s);
}

export function declareMla(params: Parameters, path: string, options: MlaOptions): Deferred<Mixer> {
  const { hidden, heads, queryRank, latent, ropeDim, plainDim, valueDim, bias } = options;
  const row = (name: string, out: number, width: number, biased = false) => declareRows(params, { path: `${path}.${name}`, out }, width, biased);
  const queryWidth = heads * (plainDim + ropeDim);
  const query = queryRank === null ? [row('q_proj', queryWidth, hidden)] : [row('q_a_proj', queryRank, hidden, bias), row('q_b_proj', queryWidth, queryRank)];
  const queryNorm = queryRank === null ? null : params.declareNorm(`${path}.q_a_layernorm.weight`, queryRank);
  const down = row('kv_a_proj_with_mqa', latent + ropeDim, hidden, bias);
  const latentNorm = params.declareNorm(`${path}.kv_a_layernorm.weight`, latent);
  const embedQuery = declareMatrix(params, `${path}.embed_q`, [heads, latent], plainDim, false);
  const unembed = declareMatrix(params, `${path}.unembed_out`, [heads, valueDim], latent, false);
  const out = row('o_proj', hidden, heads * valueDim, bias);
  const indexer = options.indexer === null ? null : declareIndexer(params, `${path}.indexer`, options.indexer);
  return (loader) =>
    mx.scope(
      () =>
        new LatentAttention(options, {
          query: query.map((rows) => finish(rows.read(loader), loader)),
          queryNorm: queryNorm === null ? null : loader.own(queryNorm(loader)),
          down: finish(down.read(loader), loader),
          latentNorm: loader.own(latentNorm(loader)),
          embedQuery: ownRows(embedQuery.read(loader), loader),
          unembed: ownRows(unembed.read(loader), loader),
          out: finish(out.read(loader), loader),
          rope: options.rope(loader),
          indexer: indexer?.(loader) ?? null,
        }),
    );
}
