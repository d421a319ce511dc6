/** The gated feed-forward block: down(silu(gate(x)) * up(x)). */
import * as mx from '../mlx/ops.ts';
import type { Tensor } from '../mlx/types.ts';
import { declareProjection, type Projection } from './linear.ts';
import type { Deferred, Parameters } from './parameters.ts';
import { columns, type Step } from './step.ts';

export class GatedMlp {
  readonly #gateUp: Projection;
  readonly #down: Projection;
  readonly #inner: number;

  constructor(gateUp: Projection, down: Projection, inner: number) {
    this.#gateUp = gateUp;
    this.#down = down;
    this.#inner = inner;
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
    return this.#down.all(mx.mul(mx.silu(gate, s), up, s), rows, s);
  }
}

export function declareGatedMlp(params: Parameters, path: string, hidden: number, inner: number): Deferred<GatedMlp> {
  const gateUp = declareProjection(
    params,
    ['gate_proj', 'up_proj'].map((name) => [{ path: `${path}.${name}`, out: inner }]),
    hidden,
  );
  const down = declareProjection(params, [[{ path: `${path}.down_proj`, out: hidden }]], inner);
  return (loader) => new GatedMlp(gateUp(loader), down(loader), inner);
}
