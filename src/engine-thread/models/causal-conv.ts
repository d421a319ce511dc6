/** A short causal convolution over each channel by itself: every output looks at the last `kernel` inputs. */
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';
import type { Deferred, Parameters } from './parameters.ts';

export class CausalConv {
  readonly #channels: number;
  /** [channels, kernel, 1] */
  readonly #filter: Tensor;
  readonly #bias: Tensor | null;

  constructor(channels: number, filter: Tensor, bias: Tensor | null) {
    this.#channels = channels;
    this.#filter = filter;
    this.#bias = bias;
  }

  /** window [batch, kernel - 1 + length, channels] to [batch, length, channels]. */
  apply(window: Tensor, s: Stream): Tensor {
    const out = mx.conv1d(window, this.#filter, 1, 0, 1, this.#channels, s);
    return this.#bias === null ? out : mx.add(out, this.#bias, s);
  }
}

/** Filters as MLX stores them, [channels, kernel, 1]. */
export function declareCausalConv(params: Parameters, path: string, channels: number, kernel: number, bias: boolean): Deferred<CausalConv> {
  const filter = params.declare(`${path}.weight`, [channels, kernel, 1]);
  const added = bias ? params.declare(`${path}.bias`, [channels]) : null;
  return (loader) => mx.scope(() => new CausalConv(channels, loader.own(filter(loader)), added === null ? null : loader.own(added(loader))));
}
