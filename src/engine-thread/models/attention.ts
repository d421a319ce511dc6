/**
 * Softmax attention over cached keys and values: grouped heads, rotary positions, optional norms of q and k, optional
 * output gate. Families differ in these options only.
 */
import type { KvCache } from '../cache/kv-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Tensor } from '../mlx/types.ts';
import { declareProjection, type LinearPart, type Projection } from './linear.ts';
import type { Deferred, Loader, Parameters } from './parameters.ts';
import type { Rotate } from './rope.ts';
import { columns, type Step } from './step.ts';

export interface AttentionOptions {
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly bias: boolean;
  /** q and k are normalised per head with stored weights. */
  readonly qkNormEps: number | null;
  /** The output is multiplied by sigmoid(gate); q_proj's rows hold each head's query, then its gate. */
  readonly outputGate: boolean;
}

/** Attention mask of one step: none needed, causal, or [rows, 1, length, columns] for a batch. */
export type Mask = null | 'causal' | Tensor;

/**
 * Which columns each new token may see. One row needs none for a single token and MLX's own causal mask otherwise; rows
 * of a batch begin at different columns.
 */
export function attentionMask(cache: KvCache, { batch, length, s }: Step): Mask {
  if (batch === 1) return length === 1 ? null : 'causal';
  if (cache.padding.every((padding) => padding === 0) && length === 1) return null;
  const total = cache.length + length;
  const column = mx.arange(0, total, 1, 'int32', s);
  const begins = mx.reshape(mx.fromInts(Int32Array.from(cache.padding), [batch]), [batch, 1, 1, 1], s);
  const started = mx.greaterEqual(column, begins, s);
  if (length === 1) return started;
  const position = mx.reshape(mx.arange(cache.length, total, 1, 'int32', s), [length, 1], s);
  return mx.logicalAnd(started, mx.lessEqual(column, position, s), s);
}

const QUERY_BLOCK = 128;

export class Attention {
  readonly #options: AttentionOptions;
  /** Groups: q and k, v, gate. */
  readonly #input: Projection;
  readonly #out: Projection;
  /** [heads + kvHeads, 1, headDim]: q's norm weights for its heads, then k's. */
  readonly #norm: Tensor | null;

  constructor(options: AttentionOptions, input: Projection, out: Projection, norm: Tensor | null) {
    this.#options = options;
    this.#input = input;
    this.#out = out;
    this.#norm = norm;
  }

  forward(x: Tensor, cache: KvCache, rotate: Rotate, mask: Mask, step: Step): Tensor {
    const { s, batch, length, rows } = step;
    const { heads, kvHeads, headDim, qkNormEps } = this.#options;
    const joined = heads + kvHeads;
    const { qk, v, gate } = this.#project(x, step);
    // q and k together: norm and rotation treat each head by itself.
    let perHead = mx.transpose(mx.reshape(qk, [batch, length, joined, headDim], s), [0, 2, 1, 3], s);
    if (this.#norm !== null) perHead = mx.mul(mx.rmsNorm(perHead, null, qkNormEps!, s), this.#norm, s);
    const turned = rotate(perHead);
    const queries = mx.slice(turned, [0, 0, 0, 0], [batch, heads, length, headDim], s);
    const newKeys = mx.slice(turned, [0, heads, 0, 0], [batch, joined, length, headDim], s);
    const newValues = mx.transpose(mx.reshape(v, [batch, length, kvHeads, headDim], s), [0, 2, 1, 3], s);
    const { keys, values } = cache.append(newKeys, newValues, length, s);
    const mixed = this.#attend(queries, keys, values, cache.length, mask, step);
    const merged = mx.reshape(mx.transpose(mixed, [0, 2, 1, 3], s), [rows, heads * headDim], s);
    return this.#out.all(gate === null ? merged : mx.mul(merged, mx.sigmoid(gate, s), s), rows, s);
  }

  /**
   * On CPU, MLX computes masked scores too. Cutting a long causal step into blocks of queries, each with the keys up to
   * its own end, leaves most of those out.
   */
  #attend(queries: Tensor, keys: Tensor, values: Tensor, total: number, mask: Mask, { s, device, batch, length }: Step): Tensor {
    const { heads, kvHeads, headDim } = this.#options;
    const scale = headDim ** -0.5;
    if (device !== 'cpu' || mask !== 'causal' || length <= QUERY_BLOCK) return mx.sdpa(queries, keys, values, scale, { mask }, s);
    const blocks: Tensor[] = [];
    for (let from = 0; from < length; from += QUERY_BLOCK) {
      const to = Math.min(from + QUERY_BLOCK, length);
      const seen = total - length + to;
      const q = mx.slice(queries, [0, 0, from, 0], [batch, heads, to, headDim], s);
      const upTo = (t: Tensor) => mx.slice(t, [0, 0, 0, 0], [batch, kvHeads, seen, headDim], s);
      blocks.push(mx.sdpa(q, upTo(keys), upTo(values), scale, { mask }, s));
    }
    return mx.concatenate(blocks, 2, s);
  }

  #project(x: Tensor, { rows, s }: Step): { qk: Tensor; v: Tensor; gate: Tensor | null } {
    const { heads, kvHeads, headDim, outputGate } = this.#options;
    if (rows > 1) {
      const part = (i: number) => this.#input.group(i, x, rows, s);
      return { qk: part(0), v: part(1), gate: outputGate ? part(2) : null };
    }
    const all = this.#input.all(x, rows, s);
    const endOfQk = (heads + kvHeads) * headDim;
    const endOfV = endOfQk + kvHeads * headDim;
    return {
      qk: columns(all, rows, 0, endOfQk, s),
      v: columns(all, rows, endOfQk, endOfV, s),
      gate: outputGate ? columns(all, rows, endOfV, endOfV + heads * headDim, s) : null,
    };
  }
}

/** Declares `q_proj`, `k_proj`, `v_proj`, `o_proj` and the norms under `path`. */
export function declareAttention(params: Parameters, path: string, options: AttentionOptions): Deferred<Attention> {
  const { hidden, heads, kvHeads, headDim, bias, outputGate, qkNormEps } = options;
  const rows = (name: string, count: number): LinearPart => ({ path: `${path}.${name}`, out: count * headDim });
  const ofQuery = (from: number, to: number): LinearPart => ({ ...rows('q_proj', heads), pick: { width: 2 * headDim, from, to } });
  const groups = [[outputGate ? ofQuery(0, headDim) : rows('q_proj', heads), rows('k_proj', kvHeads)], [rows('v_proj', kvHeads)]];
  if (outputGate) groups.push([ofQuery(headDim, 2 * headDim)]);
  const input = declareProjection(params, groups, hidden, { bias });
  const out = declareProjection(params, [[{ path: `${path}.o_proj`, out: hidden }]], heads * headDim, { bias });
  const norms = qkNormEps === null ? null : (['q_norm', 'k_norm'] as const).map((name) => params.declareNorm(`${path}.${name}.weight`, headDim));
  return (loader) => {
    const joined = norms?.map((norm, i) => [norm, i === 0 ? heads : kvHeads] as const);
    const perHead = joined === undefined ? null : mx.scope(() => loader.own(normTable(joined, headDim, loader)));
    return new Attention(options, input(loader), out(loader), perHead);
  };
}

/** Each norm's weights repeated for its heads: [heads + kvHeads, 1, headDim]. */
function normTable(norms: readonly (readonly [Deferred<Tensor>, number])[], headDim: number, loader: Loader): Tensor {
  const s = loader.stream;
  const tables = norms.map(([read, count]) => mx.broadcastTo(mx.reshape(read(loader), [1, 1, headDim], s), [count, 1, headDim], s));
  return mx.contiguous(mx.concatenate(tables, 0, s), s);
}
