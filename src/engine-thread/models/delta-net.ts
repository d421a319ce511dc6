/**
 * A gated delta net layer: projections, a short causal convolution over each channel, the gated delta rule per head, a
 * gated norm and the output projection.
 *
 * Its cache is an ArraysCache of two: the last `kernel - 1` inputs of the convolution [kernel - 1, channels] and the
 * heads' matrices [Hv, Dv, Dk], which are float32 in every model.
 */
import { type ArraySpec, ArraysCache } from '../cache/arrays-cache.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Mixer } from './block.ts';
import { DELTA_CHUNK, type DeltaHeads, deltaChunks, deltaStep } from './gated-delta.ts';
import { declareProjection, type LinearPart, type Projection } from './linear.ts';
import type { Deferred, Loader, Parameters } from './parameters.ts';
import { columns, type Step } from './step.ts';

export interface DeltaNetOptions extends DeltaHeads {
  readonly hidden: number;
  readonly kernel: number;
  readonly normEps: number;
  readonly dtype: Dtype;
  /** Two stored projections, whose rows lie key head by key head: q, k, v and z; b and a. */
  readonly fused?: boolean;
}

const CONV = 0;
const STATE = 1;
/** q and k are divided by sqrt(sum of squares + this). */
const L2_EPS = 1e-6;

interface Weights {
  /** Groups: q, k and v; z; b and a. */
  readonly input: Projection;
  readonly out: Projection;
  /** [kernel, channels] */
  readonly conv: Tensor;
  /** [channels, kernel, 1], for MLX's own convolution. */
  readonly convFilter: Tensor;
  readonly dtBias: Tensor;
  /** -exp(A_log), float32. */
  readonly negRate: Tensor;
  readonly norm: Tensor;
  /** [2 Hk, 1, 1]: the factors that turn an rms norm into q / |q| / sqrt(Dk), and k / |k|. */
  readonly qkScale: Tensor;
}

export class DeltaNet implements Mixer {
  readonly #o: DeltaNetOptions;
  readonly #w: Weights;
  readonly #channels: number;
  readonly #qkWidth: number;
  readonly #valueWidth: number;

  constructor(options: DeltaNetOptions, weights: Weights) {
    this.#o = options;
    this.#w = weights;
    this.#qkWidth = 2 * options.keyHeads * options.keyDim;
    this.#valueWidth = options.valueHeads * options.valueDim;
    this.#channels = this.#qkWidth + this.#valueWidth;
  }

  static cacheSpecs({ keyHeads, valueHeads, keyDim, valueDim, kernel, dtype }: DeltaNetOptions): ArraySpec[] {
    return [
      { shape: [kernel - 1, 2 * keyHeads * keyDim + valueHeads * valueDim], dtype },
      { shape: [valueHeads, valueDim, keyDim], dtype: 'float32' },
    ];
  }

  makeCaches(): ArraysCache[] {
    return [new ArraysCache(DeltaNet.cacheSpecs(this.#o))];
  }

  forward(x: Tensor, caches: readonly LayerCache[], step: Step): Tensor {
    const cache = caches[0] as ArraysCache;
    const { rows, s } = step;
    const { qkv, z, b, a } = this.#project(x, step);
    const beta = this.#float(mx.sigmoid(b, s), s);
    // The log of the decay, at most 0.
    const g = mx.mul(this.#float(mx.softplus(mx.add(a, this.#w.dtBias, s), s), s), this.#w.negRate, s);
    const mixed = step.length === 1 ? this.#one(qkv, g, beta, cache, step) : this.#many(qkv, g, beta, cache, step);
    cache.advance(step.length);
    return this.#w.out.all(this.#gatedNorm(mixed, z, rows, s), rows, s);
  }

  /** mixed [rows * Hv, Dv] in float32 or the model's type, z [rows, Hv * Dv] to [rows, Hv * Dv]. */
  #gatedNorm(mixed: Tensor, z: Tensor, rows: number, s: Stream): Tensor {
    const { normEps, dtype } = this.#o;
    const normed = mx.reshape(mx.rmsNorm(mixed, this.#w.norm, normEps, s), [rows, this.#valueWidth], s);
    const gate = mx.silu(this.#float(z, s), s);
    return this.#cast(mx.mul(this.#float(normed, s), gate, s), dtype, s);
  }

  #project(x: Tensor, { rows, s }: Step): { qkv: Tensor; z: Tensor; b: Tensor; a: Tensor } {
    const { valueHeads } = this.#o;
    const channels = this.#channels;
    const gates = channels + this.#valueWidth;
    if (rows > 1) {
      const ba = this.#w.input.group(2, x, rows, s);
      return {
        qkv: this.#w.input.group(0, x, rows, s),
        z: this.#w.input.group(1, x, rows, s),
        b: columns(ba, rows, 0, valueHeads, s),
        a: columns(ba, rows, valueHeads, 2 * valueHeads, s),
      };
    }
    const all = this.#w.input.all(x, rows, s);
    return {
      qkv: columns(all, rows, 0, channels, s),
      z: columns(all, rows, channels, gates, s),
      b: columns(all, rows, gates, gates + valueHeads, s),
      a: columns(all, rows, gates + valueHeads, gates + 2 * valueHeads, s),
    };
  }

  /** One token of each row. */
  #one(qkv: Tensor, g: Tensor, beta: Tensor, cache: ArraysCache, { batch, s }: Step): Tensor {
    const { keyHeads, valueHeads, keyDim, valueDim, kernel, dtype } = this.#o;
    const channels = this.#channels;
    const window = mx.concatenate([cache.get(CONV, s), mx.reshape(qkv, [batch, 1, channels], s)], 1, s);
    cache.set(CONV, mx.contiguous(mx.slice(window, [0, 1, 0], [batch, kernel, channels], s), s));
    const mixed = dtype === 'float32' ? mx.sum(mx.mul(window, this.#w.conv, s), 1, false, s) : mx.reshape(this.#convolve(window, s), [batch, channels], s);
    const y = mx.silu(mixed, s);
    const qk = this.#normalise(mx.reshape(columns(y, batch, 0, this.#qkWidth, s), [batch, 2 * keyHeads, 1, keyDim], s), s);
    const half = (from: number) => mx.slice(qk, [0, from, 0, 0], [batch, from + keyHeads, 1, keyDim], s);
    const v = this.#float(columns(y, batch, this.#qkWidth, channels, s), s);
    const { out, state } = deltaStep(half(0), half(keyHeads), v, mx.exp(g, s), beta, cache.get(STATE, s), batch, this.#o, s);
    cache.set(STATE, state);
    return this.#cast(mx.reshape(out, [batch * valueHeads, valueDim], s), dtype, s);
  }

  /** Several tokens of each row, padded to whole chunks; padding writes nothing, for its beta is 0. */
  #many(qkv: Tensor, g: Tensor, beta: Tensor, cache: ArraysCache, { batch, length, s }: Step): Tensor {
    const { keyHeads, valueHeads, keyDim, valueDim, kernel, dtype } = this.#o;
    const channels = this.#channels;
    const chunk = Math.min(DELTA_CHUNK, 2 ** Math.ceil(Math.log2(length)));
    const padded = Math.ceil(length / chunk) * chunk;
    const padding = padded - length;

    const pieces = [cache.get(CONV, s), mx.reshape(qkv, [batch, length, channels], s)];
    if (padding > 0) pieces.push(mx.zeros([batch, padding, channels], dtype, s));
    const window = mx.concatenate(pieces, 1, s);
    cache.set(CONV, mx.contiguous(mx.slice(window, [0, length, 0], [batch, length + kernel - 1, channels], s), s));
    const y = mx.silu(dtype === 'float32' ? this.#shiftedSum(window, batch, padded, s) : this.#convolve(window, s), s);

    // [batch, tokens, heads * dim] to [batch, heads, tokens, dim]
    const heads = (from: number, to: number, count: number, dim: number) => {
      const part = mx.slice(y, [0, 0, from], [batch, padded, to], s);
      return this.#float(mx.contiguous(mx.transpose(mx.reshape(part, [batch, padded, count, dim], s), [0, 2, 1, 3], s), s), s);
    };
    const qk = this.#normalise(heads(0, this.#qkWidth, 2 * keyHeads, keyDim), s);
    const half = (from: number) => mx.slice(qk, [0, from, 0, 0], [batch, from + keyHeads, padded, keyDim], s);
    const v = heads(this.#qkWidth, channels, valueHeads, valueDim);
    const perToken = (t: Tensor) => {
      const byHead = mx.swapaxes(mx.reshape(t, [batch, length, valueHeads], s), 1, 2, s);
      return padding === 0 ? byHead : mx.concatenate([byHead, mx.zeros([batch, valueHeads, padding], 'float32', s)], 2, s);
    };
    const { out, state } = deltaChunks(half(0), half(keyHeads), v, perToken(g), perToken(beta), cache.get(STATE, s), batch, padded, chunk, this.#o, s);
    cache.set(STATE, state);
    const kept = mx.slice(mx.transpose(out, [0, 2, 1, 3], s), [0, 0, 0, 0], [batch, length, valueHeads, valueDim], s);
    return this.#cast(mx.reshape(kept, [batch * length * valueHeads, valueDim], s), dtype, s);
  }

  #normalise(qk: Tensor, s: Stream): Tensor {
    // rms norm adds its epsilon to the mean of squares; the rule's belongs to their sum.
    return mx.mul(this.#float(mx.rmsNorm(qk, null, L2_EPS / this.#o.keyDim, s), s), this.#w.qkScale, s);
  }

  /** The convolution as a sum of shifted products: on CPU several times faster than MLX's for one filter per channel. */
  #shiftedSum(window: Tensor, batch: number, length: number, s: Stream): Tensor {
    const { kernel } = this.#o;
    const channels = this.#channels;
    const tap = (j: number) => {
      const filter = mx.slice(this.#w.conv, [j, 0], [j + 1, channels], s);
      return mx.mul(mx.slice(window, [0, j, 0], [batch, j + length, channels], s), filter, s);
    };
    let sum = tap(0);
    for (let j = 1; j < kernel; j++) sum = mx.add(sum, tap(j), s);
    return sum;
  }

  #convolve(window: Tensor, s: Stream): Tensor {
    return mx.conv1d(window, this.#w.convFilter, 1, 0, 1, this.#channels, s);
  }

  #float(t: Tensor, s: Stream): Tensor {
    return this.#o.dtype === 'float32' ? t : mx.astype(t, 'float32', s);
  }

  #cast(t: Tensor, dtype: Dtype, s: Stream): Tensor {
    return dtype === 'float32' ? t : mx.astype(t, dtype, s);
  }
}

/** Declares everything under `path`; the convolution's weight may be [channels, kernel, 1], [channels, 1, kernel] or [channels, kernel]. */
export function declareDeltaNet(params: Parameters, path: string, options: DeltaNetOptions): Deferred<DeltaNet> {
  const { hidden, keyHeads, valueHeads, keyDim, valueDim, kernel } = options;
  const valueWidth = valueHeads * valueDim;
  const channels = 2 * keyHeads * keyDim + valueWidth;
  const input = declareProjection(params, options.fused ? fusedParts(path, options) : separateParts(path, options), hidden);
  const out = declareProjection(params, [[{ path: `${path}.out_proj`, out: hidden }]], valueWidth);
  const conv = params.declare(`${path}.conv1d.weight`, [channels, kernel, 1], [channels, 1, kernel], [channels, kernel]);
  const dtBias = params.declare(`${path}.dt_bias`, [valueHeads]);
  const aLog = params.declare(`${path}.A_log`, [valueHeads]);
  const norm = params.declare(`${path}.norm.weight`, [valueDim]);
  return (loader: Loader) =>
    mx.scope(() => {
      const s = loader.stream;
      const filter = loader.own(mx.reshape(conv(loader), [channels, kernel, 1], s));
      const scale = keyDim ** -0.5;
      const factors = Float32Array.from({ length: 2 * keyHeads }, (_, i) => (i < keyHeads ? scale * scale : scale));
      return new DeltaNet(options, {
        input: input(loader),
        out: out(loader),
        convFilter: filter,
        conv: loader.own(mx.contiguous(mx.transpose(mx.reshape(filter, [channels, kernel], s), null, s), s)),
        dtBias: loader.own(dtBias(loader)),
        negRate: loader.own(mx.neg(mx.exp(mx.astype(aLog(loader), 'float32', s), s), s)),
        norm: loader.own(norm(loader)),
        qkScale: loader.own(mx.fromBytes(new Uint8Array(factors.buffer), [2 * keyHeads, 1, 1], 'float32')),
      });
    });
}

function separateParts(path: string, { keyHeads, valueHeads, keyDim, valueDim }: DeltaNetOptions): LinearPart[][] {
  const part = (name: string, out: number) => ({ path: `${path}.${name}`, out });
  const valueWidth = valueHeads * valueDim;
  return [
    [part('in_proj_qkv', 2 * keyHeads * keyDim + valueWidth)],
    [part('in_proj_z', valueWidth)],
    [part('in_proj_b', valueHeads), part('in_proj_a', valueHeads)],
  ];
}

function fusedParts(path: string, { keyHeads, valueHeads, keyDim, valueDim }: DeltaNetOptions): LinearPart[][] {
  const repeat = valueHeads / keyHeads;
  const values = repeat * valueDim;
  const pick = (name: string, width: number, from: number, size: number): LinearPart => ({
    path: `${path}.${name}`,
    out: keyHeads * size,
    pick: { width, from, to: from + size },
  });
  const wide = (from: number, size: number) => pick('in_proj_qkvz', 2 * keyDim + 2 * values, from, size);
  return [
    [wide(0, keyDim), wide(keyDim, keyDim), wide(2 * keyDim, values)],
    [wide(2 * keyDim + values, values)],
    [pick('in_proj_ba', 2 * repeat, 0, repeat), pick('in_proj_ba', 2 * repeat, repeat, repeat)],
  ];
}
