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
  readonly #permutation: Tensor | null;

  constructor(config: RopeConfig, headDim: number, dtype: Dtype, loader: Loader) {
    this.#config = config;
    this.#headDim = headDim;
    this.#dtype = dtype;
    const half = config.dims / 2;
    const step = Math.fround(Math.log(config.base) / half);
    this.#frequencies = Float32Array.from({ length: half }, (_, i) => Math.exp(Math.fround(-i * step)));
    this.#permutation = loader.options.device === 'cpu' ? loader.own(mx.astype(permutation(headDim, half), dtype, loader.stream)) : null;
  }

  /** @param offsets position of each row's first new token */
  prepare(offsets: readonly number[], step: Step): Rotate {
    const { s } = step;
    const { dims, base, scale } = this.#config;
    const single = offsets.length === 1;
    if (this.#permutation === null) {
      const offset = single ? offsets[0]! : mx.fromInts(Int32Array.from(offsets), [offsets.length]);
      return (x) => mx.rope(x, dims, false, base, scale, offset, null, s);
    }
    const p = this.#permutation;
    const [cos, sin] = this.#tables(offsets, step);
    return (x) => mx.add(mx.mul(x, cos, s), mx.mul(mx.matmul(x, p, s), sin, s), s);
  }

  /** cos (1 where nothing turns) and sin (0 there), [rows, 1, length, headDim]. */
  #tables(offsets: readonly number[], { length, s }: Step): [cos: Tensor, sin: Tensor] {
    const width = this.#headDim;
    const half = this.#frequencies.length;
    const cos = new Float32Array(offsets.length * length * width).fill(1);
    const sin = new Float32Array(cos.length);
    let at = 0;
    for (const offset of offsets) {
      for (let t = 0; t < length; t++, at += width) {
        const position = Math.fround((offset + t) * this.#config.scale);
        for (let i = 0; i < half; i++) {
          const angle = Math.fround(position * this.#frequencies[i]!);
          cos[at + i] = cos[at + half + i] = Math.cos(angle);
          sin[at + i] = sin[at + half + i] = Math.sin(angle);
        }
      }
    }
    const shape = [offsets.length, 1, length, width];
    const table = (values: Float32Array) => {
      const t = mx.fromBytes(new Uint8Array(values.buffer), shape, 'float32');
      return this.#dtype === 'float32' ? t : mx.astype(t, this.#dtype, s);
    };
    return [table(cos), table(sin)];
  }
}

/** P with (x P)[i] = -x[i + half] and (x P)[i + half] = x[i] for the turned dimensions, 0 elsewhere. */
function permutation(headDim: number, half: number): Tensor {
  const p = new Float32Array(headDim * headDim);
  for (let i = 0; i < half; i++) {
    p[(i + half) * headDim + i] = -1;
    p[i * headDim + i + half] = 1;
  }
  return mx.fromBytes(new Uint8Array(p.buffer), [headDim, headDim], 'float32');
}
