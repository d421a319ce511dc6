/** The gated feed-forward block: down(act(gate(x)) * up(x)). */
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';
import type { FeedForward } from './block.ts';
import { declareProjection, type Projection } from './linear.ts';
import type { Deferred, Parameters } from './parameters.ts';
import { columns, type Step } from './step.ts';

/** What gate and up make together. */
export type GateActivation = (gate: Tensor, up: Tensor, s: Stream) => Tensor;

export const swiGlu: GateActivation = (gate, up, s) => mx.mul(mx.silu(gate, s), up, s);

/** GELU by its tanh approximation. */
export const geGlu: GateActivation = (gate, up, s) => {
  const cubic = mx.add(gate, mx.mul(mx.mul(mx.mul(gate, gate, s), gate, s), 0.044715, s), s);
  const curve = mx.add(mx.tanh(mx.mul(cubic, Math.sqrt(2 / Math.PI), s), s), 1, s);
  return mx.mul(mx.mul(mx.mul(gate, 0.5, s), curve, s), up, s);
};

export class GatedMlp implements FeedForward {
  readonly #gateUp: Projection;
  readonly #down: Projection;
  readonly #inner: number;
  readonly #activation: GateActivation;

  constructor(gateUp: Projection, down: Projection, inner: number, activation: GateActivation) {
    this.#gateUp = gateUp;
    this.#down = down;
    this.#inner = inner;
    this.#activation = activation;
  }

  forward(x: Tensor, { rows, s }: Step): Tensor {
    let gate: Tensor;
    let up: Tensor;
    if (rows === 1) {
      const both = this.#gateUp.all(x, rows, s);
      gate = columns(both, rows, 0, this.#inner, s);
      up = columns(both, rows, this.#inner, 2 * this.#inner, s);
    } else {
      gate = this.#gateUp.group(0, x, rows, s);
      up = this.#gateUp.group(1, x, rows, s);
    }
    return this.#down.all(this.#activation(gate, up, s), rows, s);
  }
}

export interface MlpOptions {
  readonly activation?: GateActivation;
  readonly bias?: boolean;
}

/** Declares `gate_proj`, `up_proj` and `down_proj` under `path`. */
export function declareGatedMlp(params: Parameters, path: string, hidden: number, inner: number, options: MlpOptions = {}): Deferred<GatedMlp> {
  const { activation = swiGlu, bias = false } = options;
  const gateUp = declareProjection(
    params,
    ['gate_proj', 'up_proj'].map((name) => [{ path: `${path}.${name}`, out: inner }]),
    hidden,
    { bias },
  );
  const down = declareProjection(params, [[{ path: `${path}.down_proj`, out: hidden }]], inner, { bias });
  return (loader) => new GatedMlp(gateUp(loader), down(loader), inner, activation);
}
