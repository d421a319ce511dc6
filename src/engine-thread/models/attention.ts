/**
 * Softmax attention over cached keys and values: grouped heads, rotary positions, norms of q and k, output gate, sinks, a
 * window. Families differ in these options only.
 */
import type { AttentionCache, Mask } from '../cache/attention-cache.ts';
import { KvCache, type KvShape } from '../cache/kv-cache.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Mixer } from './block.ts';
import type { Pass } from './decoder.ts';
import { declareProjection, type LinearPart, type Projection } from './linear.ts';
import type { Deferred, Loader, Parameters } from './parameters.ts';
import type { Rope } from './rope.ts';
import { columns, type Step } from './step.ts';

export interface AttentionOptions {
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly dtype: Dtype;
  /** Null: this layer knows no positions. */
  readonly rope: Deferred<Rope> | null;
  /** Which of the projections add a stored bias. */
  readonly bias?: { readonly input: boolean; readonly output: boolean };
  /** q and k are normalised per head: with stored weights before they are rotated, or without weights afterwards. */
  readonly qkNorm?: { readonly eps: number; readonly kind: 'stored' | 'rotated' } | null;
  /** The output is multiplied by sigmoid(gate); q_proj's rows hold each head's query, then its gate. */
  readonly outputGate?: boolean;
  /** Of the scores; 1 / sqrt(headDim) by default. */
  readonly scale?: number;
  /** A stored logit per head takes part in the softmax and in nothing else. */
  readonly sinks?: boolean;
  /** Queries of a step are multiplied by this, [rows, 1, length, 1]. */
  readonly queryFactors?: (offsets: readonly number[], step: Step) => Tensor | null;
  /** What is kept of the tokens: everything by default. */
  readonly makeCache?: (shape: KvShape) => AttentionCache;
}

interface Weights {
  /** Groups: q and k, v, gate. */
  readonly input: Projection;
  readonly out: Projection;
  /** [heads + kvHeads, 1, headDim]: q's norm weights for its heads, then k's. */
  readonly norm: Tensor | null;
  readonly sinks: Tensor | null;
  readonly rope: Rope | null;
}

const QUERY_BLOCK = 128;

export class Attention implements Mixer {
  readonly #o: AttentionOptions;
  readonly #w: Weights;

  constructor(options: AttentionOptions, weights: Weights) {
    this.#o = options;
    this.#w = weights;
  }

  makeCaches(): AttentionCache[] {
    const { kvHeads: heads, headDim, dtype, makeCache } = this.#o;
    const shape = { heads, keyDim: headDim, valueDim: headDim, dtype };
    return [makeCache === undefined ? new KvCache(shape) : makeCache(shape)];
  }

  forward(x: Tensor, caches: readonly LayerCache[], pass: Pass): Tensor {
    const cache = caches[0] as AttentionCache;
    const { s, batch, length, rows } = pass;
    const { heads, kvHeads, headDim, qkNorm = null, queryFactors } = this.#o;
    const joined = heads + kvHeads;
    const { qk, v, gate } = this.#project(x, pass);
    // q and k together: norm and rotation treat each head by itself.
    let perHead = mx.transpose(mx.reshape(qk, [batch, length, joined, headDim], s), [0, 2, 1, 3], s);
    if (this.#w.norm !== null) perHead = mx.mul(mx.rmsNorm(perHead, null, qkNorm!.eps, s), this.#w.norm, s);
    const { rope } = this.#w;
    if (rope !== null) perHead = pass.shared(rope, () => rope.prepare(cache.offsets, pass))(perHead);
    if (qkNorm?.kind === 'rotated') perHead = mx.rmsNorm(perHead, null, qkNorm.eps, s);
    let queries = mx.slice(perHead, [0, 0, 0, 0], [batch, heads, length, headDim], s);
    const factors = queryFactors === undefined ? null : pass.shared(queryFactors, () => queryFactors(cache.offsets, pass));
    if (factors !== null) queries = mx.astype(mx.mul(queries, factors, s), this.#o.dtype, s);
    const newKeys = mx.slice(perHead, [0, heads, 0, 0], [batch, joined, length, headDim], s);
    const newValues = mx.transpose(mx.reshape(v, [batch, length, kvHeads, headDim], s), [0, 2, 1, 3], s);
    const mask = pass.shared(cache.maskKey, () => cache.mask(length, s));
    const { keys, values, columns: total } = cache.append(newKeys, newValues, length, s);
    const mixed = this.#attend(queries, keys, values, total, mask, pass);
    const merged = mx.reshape(mx.transpose(mixed, [0, 2, 1, 3], s), [rows, heads * headDim], s);
    return this.#w.out.all(gate === null ? merged : mx.mul(merged, mx.sigmoid(gate, s), s), rows, s);
  }

  /**
   * On CPU, MLX computes masked scores too. Cutting a long causal step into blocks of queries, each with the keys up to
   * its own end, leaves most of those out.
   */
  #attend(queries: Tensor, keys: Tensor, values: Tensor, total: number, mask: Mask, { s, device, batch, length }: Step): Tensor {
    const { heads, kvHeads, headDim, scale = headDim ** -0.5 } = this.#o;
    const { sinks } = this.#w;
    if (device !== 'cpu' || mask !== 'causal' || length <= QUERY_BLOCK) return mx.sdpa(queries, keys, values, scale, { mask, sinks }, s);
    const blocks: Tensor[] = [];
    for (let from = 0; from < length; from += QUERY_BLOCK) {
      const to = Math.min(from + QUERY_BLOCK, length);
      const seen = total - length + to;
      const q = mx.slice(queries, [0, 0, from, 0], [batch, heads, to, headDim], s);
      const upTo = (t: Tensor) => mx.slice(t, [0, 0, 0, 0], [batch, kvHeads, seen, headDim], s);
      blocks.push(mx.sdpa(q, upTo(keys), upTo(values), scale, { mask, sinks }, s));
    }
    return mx.concatenate(blocks, 2, s);
  }

  #project(x: Tensor, { rows, s }: Step): { qk: Tensor; v: Tensor; gate: Tensor | null } {
    const { heads, kvHeads, headDim, outputGate = false } = this.#o;
    if (rows > 1) {
      const part = (i: number) => this.#w.input.group(i, x, rows, s);
      return { qk: part(0), v: part(1), gate: outputGate ? part(2) : null };
    }
    const all = this.#w.input.all(x, rows, s);
    const endOfQk = (heads + kvHeads) * headDim;
    const endOfV = endOfQk + kvHeads * headDim;
    return {
      qk: columns(all, rows, 0, endOfQk, s),
      v: columns(all, rows, endOfQk, endOfV, s),
      gate: outputGate ? columns(all, rows, endOfV, endOfV + heads * headDim, s) : null,
    };
  }
}

/** Declares `q_proj`, `k_proj`, `v_proj`, `o_proj`, the norms and the sinks under `path`. */
export function declareAttention(params: Parameters, path: string, options: AttentionOptions): Deferred<Attention> {
  const { hidden, heads, kvHeads, headDim, bias, outputGate = false, qkNorm = null, rope } = options;
  const rows = (name: string, count: number): LinearPart => ({ path: `${path}.${name}`, out: count * headDim });
  const ofQuery = (from: number, to: number): LinearPart => ({ ...rows('q_proj', heads), pick: { width: 2 * headDim, from, to } });
  const groups = [[outputGate ? ofQuery(0, headDim) : rows('q_proj', heads), rows('k_proj', kvHeads)], [rows('v_proj', kvHeads)]];
  if (outputGate) groups.push([ofQuery(headDim, 2 * headDim)]);
  const input = declareProjection(params, groups, hidden, { bias: bias?.input ?? false });
  const out = declareProjection(params, [[{ path: `${path}.o_proj`, out: hidden }]], heads * headDim, { bias: bias?.output ?? false });
  const norms = qkNorm?.kind === 'stored' ? (['q_norm', 'k_norm'] as const).map((name) => params.declareNorm(`${path}.${name}.weight`, headDim)) : null;
  const sinks = options.sinks ? params.declare(`${path}.sinks`, [heads]) : null;
  return (loader) => {
    const joined = norms?.map((norm, i) => [norm, i === 0 ? heads : kvHeads] as const);
    const perHead = joined === undefined ? null : mx.scope(() => loader.own(normTable(joined, headDim, loader)));
    return new Attention(options, {
      input: input(loader),
      out: out(loader),
      norm: perHead,
      sinks: sinks === null ? null : mx.scope(() => loader.own(sinks(loader))),
      rope: rope?.(loader) ?? null,
    });
  };
}

/** Each norm's weights repeated for its heads: [heads + kvHeads, 1, headDim]. */
function normTable(norms: readonly (readonly [Deferred<Tensor>, number])[], headDim: number, loader: Loader): Tensor {
  const s: Stream = loader.stream;
  const tables = norms.map(([read, count]) => mx.broadcastTo(mx.reshape(read(loader), [1, 1, headDim], s), [count, 1, headDim], s));
  return mx.contiguous(mx.concatenate(tables, 0, s), s);
}
