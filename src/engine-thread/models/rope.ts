/**
 * Rotary position embedding for one step: what depends on positions only is made once and used by every layer.
 *
 * On GPU MLX has a kernel for it. On CPU MLX composes it from about twenty small operations per call; here the turned
 * vector is x * cos + (x P) * sin with a constant permutation P, which is four.
 */
import * as mx from '../mlx/ops.ts';
import type { Dtype, Tensor } from '../mlx/types.ts';
import type { Loader } from './parameters.ts';
import type { RopeConfig } from './rope-config.ts';
import type { Step } from './step.ts';

/** Rotates x [batch, heads, length, headDim]. */
export type Rotate = (x: Tensor) => Tensor;

export class Rope {
  readonly #config: RopeConfig;
  readonly #headDim: number;
  readonly #dtype: Dtype;
  /** Angle per position of each rotated pair, rounded as MLX does: in float32. */
  readonly #frequencies: Float32Array;
  readonly #permutation: Tensor;
  readonly #kernel: boolean;
  /** For MLX's kernel: periods, and factors of the head's dimensions. */
  readonly #periods: Tensor | null;
  readonly #factors: Tensor | null;

  /** @param kernel whether MLX's own operation is used; a model that rounds what is rotated to few bits needs its very values */
  constructor(config: RopeConfig, headDim: number, dtype: Dtype, loader: Loader, kernel = loader.options.device !== 'cpu') {
    this.#config = config;
    this.#headDim = headDim;
    this.#dtype = dtype;
    const { periods = null, mscale = 1, dims } = config;
    this.#frequencies = periods === null ? frequencies(dims, config.base) : Float32Array.from(periods, (period) => 1 / Math.fround(period));
    this.#permutation = loader.own(mx.astype(permutation(headDim, config), dtype, loader.stream));
    this.#kernel = kernel;
    this.#periods = this.#kernel && periods !== null ? loader.own(floats(Float32Array.from(periods), [dims / 2])) : null;
    const factors = Float32Array.from({ length: headDim }, (_, i) => (i < dims ? mscale : 1));
    this.#factors = this.#kernel && mscale !== 1 ? loader.own(mx.astype(floats(factors, [headDim]), dtype, loader.stream)) : null;
  }

  /** @param offsets position of each row's first new token */
  prepare(offsets: readonly number[], step: Step): Rotate {
    const { s } = step;
    const { dims, scale, traditional = false } = this.#config;
    const bases = offsets.map((offset) => this.#baseAt(offset + step.length));
    if (this.#kernel && bases.every((base) => base === bases[0])) {
      const offset = offsets.length === 1 ? offsets[0]! : mx.fromInts(Int32Array.from(offsets), [offsets.length]);
      const base = this.#periods === null ? bases[0]! : null;
      return (x) => {
        const scaled = this.#factors === null ? x : mx.mul(x, this.#factors, s);
        return mx.rope(scaled, dims, traditional, base, scale, offset, this.#periods, s);
      };
    }
    const [cos, sin] = this.#tables(offsets, bases, step);
    return (x) => mx.add(mx.mul(x, cos, s), mx.mul(mx.matmul(x, this.#permutation, s), sin, s), s);
  }

  #baseAt(length: number): number {
    const { base, dims, dynamic } = this.#config;
    if (dynamic === undefined || length <= dynamic.from) return base;
    return base * ((dynamic.factor * length) / dynamic.from - (dynamic.factor - 1)) ** (dims / (dims - 2));
  }

  /** cos (1 where nothing turns) and sin (0 there), [rows, 1, length, headDim]. */
  #tables(offsets: readonly number[], bases: readonly number[], { length, s }: Step): [cos: Tensor, sin: Tensor] {
    const width = this.#headDim;
    const { dims, base, scale, mscale = 1, traditional = false } = this.#config;
    const half = dims / 2;
    const cos = new Float32Array(offsets.length * length * width).fill(1);
    const sin = new Float32Array(cos.length);
    let at = 0;
    for (const [row, offset] of offsets.entries()) {
      const angles = bases[row] === base ? this.#frequencies : frequencies(dims, bases[row]!);
      for (let t = 0; t < length; t++, at += width) {
        const position = Math.fround((offset + t) * scale);
        for (let i = 0; i < half; i++) {
          const angle = Math.fround(position * angles[i]!);
          const first = at + (traditional ? 2 * i : i);
          const second = traditional ? first + 1 : first + half;
          cos[first] = cos[second] = mscale * Math.cos(angle);
          sin[first] = sin[second] = mscale * Math.sin(angle);
        }
      }
    }
    const shape = [offsets.length, 1, length, width];
    const table = (values: Float32Array) => {
      const t = floats(values, shape);
      return this.#dtype === 'float32' ? t : mx.astype(t, this.#dtype, s);
    };
    return [table(cos), table(sin)];
  }
}

function frequencies(dims: number, base: number): Float32Array {
  const half = dims / 2;
  const step = Math.fround(Math.log(base) / half);
  return Float32Array.from({ length: half }, (_, i) => Math.exp(Math.fround(-i * step)));
}

function floats(values: Float32Array, shape: readonly number[]): Tensor {
  return mx.fromBytes(new Uint8Array(values.buffer), shape, 'float32');
}

/** P with (x P)[a] = -x[b] and (x P)[b] = x[a] for each turned pair (a, b), 0 elsewhere. */
function permutation(headDim: number, { dims, traditional = false }: RopeConfig): Tensor {
  const p = new Float32Array(headDim * headDim);
  for (let i = 0; i < dims / 2; i++) {
    const a = traditional ? 2 * i : i;
    const b = traditional ? a + 1 : a + dims / 2;
    p[b * headDim + a] = -1;
    p[a * headDim + b] = 1;
  }
  return floats(p, [headDim, headDim]);
}
