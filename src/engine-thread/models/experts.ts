/**
 * Mixture of experts: for each token the router picks a few of many feed-forward blocks, whose outputs are added up by weight.
 *
 * Experts are stored as stacks [experts, out, in], so that one product gathers the rows it needs.
 */
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { FeedForward } from './block.ts';
import { applyMatrix, declareMatrix, declareRows, finish, type Matrix, ownRows, type StoredRows } from './linear.ts';
import { type GateActivation, swiGlu } from './mlp.ts';
import type { Deferred, Parameters } from './parameters.ts';
import type { Step } from './step.ts';

/** From this many picks on, rows are brought into the order of their experts: each expert's weights are then read once. */
const SORTED_PICKS = 64;

/** The picked experts of each token and their weights, [rows, k]. */
export type Route = (logits: Tensor, step: Step) => { picks: Tensor; weights: Tensor };

export interface ExpertsOptions {
  readonly hidden: number;
  readonly inner: number;
  readonly experts: number;
  readonly dtype: Dtype;
  readonly activation?: GateActivation;
  readonly bias?: boolean;
}

/** x [rows, hidden] and picks [rows, k] to [rows, k, hidden]. */
export type Experts = (x: Tensor, picks: Tensor, rows: number, k: number, s: Stream) => Tensor;

/** Declares the stacks `gate_proj`, `up_proj` and `down_proj` under `path`. */
export function declareExperts(params: Parameters, path: string, options: ExpertsOptions): Deferred<Experts> {
  const { hidden, inner, experts, dtype, activation = swiGlu, bias = false } = options;
  const stack = (name: string, out: number, width: number) => declareMatrix(params, `${path}.${name}`, [experts, out], width, bias);
  const [gate, up, down] = [stack('gate_proj', inner, hidden), stack('up_proj', inner, hidden), stack('down_proj', hidden, inner)];
  return (loader) => {
    const s = loader.stream;
    // MLX's CPU backend gathers plain matrices in float32 only.
    const widen = loader.options.device === 'cpu' && dtype !== 'float32';
    const own = (rows: StoredRows) => ownRows(widen && rows.spec === null ? { ...rows, weight: mx.astype(rows.weight, 'float32', s) } : rows, loader);
    const [g, u, d] = mx.scope(() => [own(gate.read(loader)), own(up.read(loader)), own(down.read(loader))]) as [StoredRows, StoredRows, StoredRows];
    return (x, picks, rows, k, stream) => {
      const apply = (m: StoredRows, input: Tensor, index: Tensor, sorted: boolean) => gathered(m, input, index, sorted, dtype, stream);
      if (rows * k < SORTED_PICKS) {
        const input = mx.reshape(x, [rows, 1, 1, hidden], stream);
        const mixed = activation(apply(g, input, picks, false), apply(u, input, picks, false), stream);
        return mx.reshape(apply(d, mixed, picks, false), [rows, k, hidden], stream);
      }
      const flat = mx.reshape(picks, [rows * k], stream);
      const order = mx.argsort(flat, 0, stream);
      const sorted = mx.take(flat, order, 0, stream);
      const input = mx.reshape(mx.take(x, mx.floorDivide(order, k, stream), 0, stream), [rows * k, 1, hidden], stream);
      const mixed = activation(apply(g, input, sorted, true), apply(u, input, sorted, true), stream);
      const out = mx.reshape(apply(d, mixed, sorted, true), [rows * k, hidden], stream);
      return mx.reshape(mx.take(out, mx.argsort(order, 0, stream), 0, stream), [rows, k, hidden], stream);
    };
  };
}

/** x [..., 1, in] times the picked matrices of the stack. */
function gathered({ weight, scales, biases, bias, spec }: StoredRows, x: Tensor, picks: Tensor, sorted: boolean, dtype: Dtype, s: Stream): Tensor {
  let product: Tensor;
  if (spec !== null) {
    product = mx.gatherQmm(x, weight, scales!, biases, null, picks, { ...spec, sorted }, s);
  } else {
    const wide = mx.dtypeOf(weight);
    const input = wide === dtype ? x : mx.astype(x, wide, s);
    product = mx.gatherMm(input, mx.swapaxes(weight, -1, -2, s), null, picks, sorted, s);
    if (wide !== dtype) product = mx.astype(product, dtype, s);
  }
  return bias === null ? product : mx.add(product, mx.expandDims(mx.take(bias, picks, 0, s), -2, s), s);
}

export interface MoeSpec {
  readonly router: string;
  readonly routerBias?: boolean;
  readonly experts: string;
  readonly route: Deferred<Route>;
  readonly perToken: number;
  /** Sees every token, beside the picked ones. */
  readonly shared?: Deferred<FeedForward>;
}

/** A router, experts, and a feed-forward block that every token goes through where there is one. */
export function declareMoe(params: Parameters, spec: MoeSpec, options: ExpertsOptions): Deferred<FeedForward> {
  const { perToken: k } = spec;
  const router = declareRows(params, { path: spec.router, out: options.experts }, options.hidden, spec.routerBias ?? false);
  const experts = declareExperts(params, spec.experts, options);
  return (loader) => {
    const gate: Matrix = mx.scope(() => finish(router.read(loader), loader));
    const run = experts(loader);
    const route = mx.scope(() => spec.route(loader));
    const shared = spec.shared?.(loader);
    return {
      forward(x, step) {
        const { rows, s, device } = step;
        const { picks, weights } = route(applyMatrix(gate, x, rows, device, s), step);
        const each = run(x, picks, rows, k, s);
        const sum = mx.astype(mx.sum(mx.mul(each, mx.reshape(weights, [rows, k, 1], s), s), 1, false, s), options.dtype, s);
        return shared === undefined ? sum : mx.add(sum, shared.forward(x, step), s);
      },
    };
  };
}

/** The k largest of each row of [rows, n], in no order. */
export function topPicks(scores: Tensor, k: number, n: number, rows: number, s: Stream): Tensor {
  return mx.slice(mx.argpartition(scores, n - k, -1, s), [0, n - k], [rows, n], s);
}

/** As `topPicks`, with MLX's other choice among equals: scores that are cut at 0 have many. */
export function firstPicks(scores: Tensor, k: number, rows: number, s: Stream): Tensor {
  return mx.slice(mx.argpartition(mx.neg(scores, s), k - 1, -1, s), [0, 0], [rows, k], s);
}

/** Softmax over all experts, then the k largest; their weights may be made to add up to 1. */
export function softmaxThenTop(k: number, n: number, normalise: boolean): Deferred<Route> {
  return () =>
    (logits, { rows, s }) => {
      const all = mx.softmax(logits, -1, true, s);
      const picks = topPicks(all, k, n, rows, s);
      const weights = mx.takeAlongAxis(all, picks, -1, s);
      return { picks, weights: normalise ? mx.div(weights, mx.sum(weights, -1, true, s), s) : weights };
    };
}

/** The k largest, then softmax over those. */
export function topThenSoftmax(k: number, n: number): Deferred<Route> {
  return () =>
    (logits, { rows, s }) => {
      const picks = topPicks(logits, k, n, rows, s);
      return { picks, weights: mx.softmax(mx.takeAlongAxis(logits, picks, -1, s), -1, true, s) };
    };
}
