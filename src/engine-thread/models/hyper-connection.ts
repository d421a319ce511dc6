/**
 * Hyper-connections: instead of one residual stream there are several. Before a part they are collapsed to its input by
 * weights, and behind it mixed among each other by a matrix whose rows and columns add up to 1; both depend on the streams.
 *
 * A hidden state is [rows, streams * hidden + streams]: the streams, then the weights that the next part collapses them by.
 */
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Deferred, Parameters } from './parameters.ts';

export interface HyperOptions {
  readonly hidden: number;
  readonly streams: number;
  readonly iterations: number;
  readonly eps: number;
  readonly normEps: number;
  readonly dtype: Dtype;
}

/** Runs a part inside the streams. */
export type Connect = (state: Tensor, rows: number, part: (x: Tensor) => Tensor, s: Stream) => Tensor;

export function collapse(state: Tensor, rows: number, { hidden, streams, dtype }: HyperOptions, s: Stream): Tensor {
  const { flat, weights } = parts(state, rows, hidden, streams, s);
  const sum = mx.sum(mx.mul(mx.reshape(flat, [rows, streams, hidden], s), mx.expandDims(weights, -1, s), s), 1, false, s);
  return mx.astype(sum, dtype, s);
}

/** All streams the same, the first one taken. */
export function spread(x: Tensor, rows: number, { hidden, streams }: HyperOptions, s: Stream): Tensor {
  const wide = mx.reshape(
    mx.broadcastTo(mx.reshape(mx.astype(x, 'float32', s), [rows, 1, hidden], s), [rows, streams, hidden], s),
    [rows, streams * hidden],
    s,
  );
  const first = Float32Array.from({ length: streams }, (_, i) => (i === 0 ? 1 : 0));
  const weights = mx.broadcastTo(mx.fromBytes(new Uint8Array(first.buffer), [1, streams], 'float32'), [rows, streams], s);
  return mx.concatenate([wide, weights], 1, s);
}

function parts(state: Tensor, rows: number, hidden: number, streams: number, s: Stream): { flat: Tensor; weights: Tensor } {
  const width = streams * hidden;
  return { flat: mx.slice(state, [0, 0], [rows, width], s), weights: mx.slice(state, [0, width], [rows, width + streams], s) };
}

export function declareHyperConnection(params: Parameters, path: string, options: HyperOptions): Deferred<Connect> {
  const { hidden, streams, iterations, eps, normEps, dtype } = options;
  const mixes = (2 + streams) * streams;
  const fn = params.declare(`${path}.fn`, [mixes, streams * hidden]);
  const base = params.declare(`${path}.base`, [mixes]);
  const scale = params.declare(`${path}.scale`, [3]);
  return (loader) => {
    const [matrix, offset, factors] = mx.scope(() => {
      const s = loader.stream;
      const float = (t: Tensor) => mx.astype(t, 'float32', s);
      const kinds = Int32Array.from({ length: mixes }, (_, i) => (i < streams ? 0 : i < 2 * streams ? 1 : 2));
      return [
        loader.own(mx.transpose(float(fn(loader)), null, s)),
        loader.own(float(base(loader))),
        loader.own(mx.take(float(scale(loader)), mx.fromInts(kinds, [mixes]), 0, s)),
      ];
    }) as [Tensor, Tensor, Tensor];
    return (state, rows, part, s) => {
      const { flat } = parts(state, rows, hidden, streams, s);
      const mix = mx.add(mx.mul(mx.matmul(mx.rmsNorm(flat, null, normEps, s), matrix, s), factors, s), offset, s);
      const cut = (from: number, to: number) => mx.slice(mix, [0, from], [rows, to], s);
      const next = mx.add(mx.sigmoid(cut(0, streams), s), eps, s);
      const post = mx.mul(mx.sigmoid(cut(streams, 2 * streams), s), 2, s);
      const raw = mx.reshape(cut(2 * streams, mixes), [rows, streams, streams], s);
      const among = balance(mx.add(mx.softmax(raw, -1, false, s), eps, s), iterations, eps, s);
      const given = mx.astype(part(collapse(state, rows, options, s)), 'float32', s);
      // As products and a sum: as many roundings as streams, in their order, whatever the BLAS.
      const each = mx.mul(mx.expandDims(among, -1, s), mx.reshape(flat, [rows, streams, 1, hidden], s), s);
      const mixed = mx.sum(each, 1, false, s);
      const out = mx.add(mx.mul(mx.expandDims(post, -1, s), mx.reshape(given, [rows, 1, hidden], s), s), mixed, s);
      // Streams have the type that the model computes in.
      const rounded = dtype === 'float32' ? out : mx.astype(mx.astype(out, dtype, s), 'float32', s);
      return mx.concatenate([mx.reshape(rounded, [rows, streams * hidden], s), next], 1, s);
    };
  };
}

/** Columns, then rows and columns in turn, are made to add up to 1. */
function balance(matrix: Tensor, iterations: number, eps: number, s: Stream): Tensor {
  const normalise = (m: Tensor, axis: number) => mx.div(m, mx.add(mx.sum(m, axis, true, s), eps, s), s);
  let current = normalise(matrix, -2);
  for (let i = 1; i < iterations; i++) current = normalise(normalise(current, -1), -2);
  return current;
}
