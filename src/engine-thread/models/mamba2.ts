/**
 * A Mamba-2 layer: one projection for gate, convolved channels and time steps, a short causal convolution, the recurrence, a
 * gate with or without a norm, the output projection.
 *
 * Its cache is an ArraysCache of two: the last `kernel - 1` inputs of the convolution, and the heads' matrices in float32.
 */
import { ArraysCache } from '../cache/arrays-cache.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Mixer } from './block.ts';
import { type CausalConv, declareCausalConv } from './causal-conv.ts';
import { declareProjection, type Projection } from './linear.ts';
import type { Deferred, Parameters } from './parameters.ts';
import { type SsmHeads, ssm } from './ssm.ts';
import { columns, type Step } from './step.ts';

export interface Mamba2Options extends SsmHeads {
  readonly hidden: number;
  readonly kernel: number;
  readonly convBias: boolean;
  readonly inBias: boolean;
  readonly outBias: boolean;
  readonly dtype: Dtype;
  /** Limits of the time steps. */
  readonly limits: readonly [low: number, high: number];
  /** How the gate and the norm of the output follow each other; 'none': the gate alone. */
  readonly norm: 'none' | 'gate-first' | 'norm-first';
  readonly normEps: number;
}

const CONV = 0;
const STATE = 1;

interface Weights {
  readonly input: Projection;
  readonly conv: CausalConv;
  readonly out: Projection;
  readonly dtBias: Tensor;
  /** -exp(A_log), float32. */
  readonly rate: Tensor;
  /** [heads, 1] */
  readonly skip: Tensor;
  readonly norm: Tensor | null;
}

export class Mamba2 implements Mixer {
  readonly #o: Mamba2Options;
  readonly #w: Weights;
  readonly #inner: number;
  readonly #channels: number;

  constructor(options: Mamba2Options, weights: Weights) {
    this.#o = options;
    this.#w = weights;
    this.#inner = options.heads * options.headDim;
    this.#channels = this.#inner + 2 * options.groups * options.stateDim;
  }

  makeCaches(): LayerCache[] {
    const { kernel, heads, headDim, stateDim, dtype } = this.#o;
    const specs = [
      { shape: [kernel - 1, this.#channels], dtype },
      { shape: [heads, headDim, stateDim], dtype: 'float32' as const },
    ];
    return [new ArraysCache(specs)];
  }

  forward(x: Tensor, caches: readonly LayerCache[], step: Step): Tensor {
    const cache = caches[0] as ArraysCache;
    const { rows, batch, length, s } = step;
    const { heads, headDim, groups, stateDim, kernel, limits, dtype } = this.#o;
    const [inner, channels] = [this.#inner, this.#channels];
    const projected = this.#w.input.all(x, rows, s);
    const gate = columns(projected, rows, 0, inner, s);
    const mixed = mx.reshape(columns(projected, rows, inner, inner + channels, s), [batch, length, channels], s);
    const rawDt = mx.astype(columns(projected, rows, inner + channels, inner + channels + heads, s), 'float32', s);

    const window = mx.concatenate([cache.get(CONV, s), mixed], 1, s);
    cache.set(CONV, mx.contiguous(mx.slice(window, [0, length, 0], [batch, length + kernel - 1, channels], s), s));
    const convolved = mx.silu(this.#w.conv.apply(window, s), s);
    const part = (from: number, count: number, width: number) =>
      mx.reshape(mx.slice(convolved, [0, 0, from], [batch, length, from + count * width], s), [batch, length, count, width], s);
    const values = part(0, heads, headDim);
    const dt = mx.clip(mx.softplus(mx.add(rawDt, this.#w.dtBias, s), s), limits[0], Number.isFinite(limits[1]) ? limits[1] : null, s);
    const { y, state } = ssm(
      values,
      part(inner, groups, stateDim),
      part(inner + groups * stateDim, groups, stateDim),
      mx.reshape(dt, [batch, length, heads], s),
      this.#w.rate,
      cache.get(STATE, s),
      batch,
      length,
      this.#o,
      s,
    );
    cache.set(STATE, mx.contiguous(state, s));
    cache.advance(length);
    const out = mx.reshape(mx.add(y, mx.mul(values, this.#w.skip, s), s), [rows, inner], s);
    return this.#w.out.all(mx.astype(this.#gated(out, gate, s), dtype, s), rows, s);
  }

  #gated(y: Tensor, gate: Tensor, s: Stream): Tensor {
    const { norm, normEps } = this.#o;
    const open = (t: Tensor) => mx.mul(mx.silu(gate, s), t, s);
    if (norm === 'none') return open(y);
    return norm === 'gate-first' ? mx.rmsNorm(open(y), this.#w.norm, normEps, s) : open(mx.rmsNorm(y, this.#w.norm, normEps, s));
  }
}

export function declareMamba2(params: Parameters, path: string, options: Mamba2Options): Deferred<Mixer> {
  const { hidden, heads, headDim, groups, stateDim, kernel, convBias, inBias, outBias } = options;
  const inner = heads * headDim;
  const channels = inner + 2 * groups * stateDim;
  const input = declareProjection(params, [[{ path: `${path}.in_proj`, out: inner + channels + heads }]], hidden, { bias: inBias });
  const conv = declareCausalConv(params, `${path}.conv1d`, channels, kernel, convBias);
  const dtBias = params.declare(`${path}.dt_bias`, [heads]);
  const aLog = params.declare(`${path}.A_log`, [heads]);
  const skip = params.declare(`${path}.D`, [heads]);
  const norm = options.norm === 'none' ? null : params.declareNorm(`${path}.norm.weight`, inner);
  const out = declareProjection(params, [[{ path: `${path}.out_proj`, out: hidden }]], inner, { bias: outBias });
  return (loader) =>
    mx.scope(() => {
      const s = loader.stream;
      const float = (t: Tensor) => mx.astype(t, 'float32', s);
      return new Mamba2(options, {
        input: input(loader),
        conv: conv(loader),
        out: out(loader),
        dtBias: loader.own(float(dtBias(loader))),
        rate: loader.own(mx.neg(mx.exp(float(aLog(loader)), s), s)),
        skip: loader.own(mx.reshape(skip(loader), [heads, 1], s)),
        norm: norm === null ? null : loader.own(norm(loader)),
      });
    });
}
