/**
 * Mamba-2's recurrence: a matrix per head that decays and takes in an outer product of each token.
 *
 *     S <- exp(dt A) S + dt x B^T;   y = S C + D x          S: [head width, state]
 *
 * Tokens are taken in blocks: within a block every token's part in every later output follows from sums of decays, between
 * blocks the matrix is carried on. Everything is float32 but what comes in.
 */
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';

export interface SsmHeads {
  readonly heads: number;
  readonly headDim: number;
  readonly groups: number;
  readonly stateDim: number;
}

/** Tokens per block: products grow with it, the number of sequential steps shrinks. */
const SSM_BLOCK = 256;

/**
 * @param x [B, T, heads, headDim]
 * @param b c [B, T, groups, stateDim]
 * @param dt [B, T, heads], float32: softplus and limits applied
 * @param rate -exp(A_log) [heads], float32
 * @param state [B, heads, headDim, stateDim], float32
 * @returns y [B, T, heads, headDim] in x's type, without D x, and the new state
 */
export function ssm(
  x: Tensor,
  b: Tensor,
  c: Tensor,
  dt: Tensor,
  rate: Tensor,
  state: Tensor,
  batch: number,
  length: number,
  shape: SsmHeads,
  s: Stream,
): { y: Tensor; state: Tensor } {
  const { heads, headDim, groups, stateDim } = shape;
  const decay = mx.mul(dt, rate, s);
  const input = mx.mul(mx.expandDims(dt, -1, s), x, s);
  const pieces: Tensor[] = [];
  let current = state;
  for (let from = 0; from < length; from += SSM_BLOCK) {
    const to = Math.min(from + SSM_BLOCK, length);
    const cut = (t: Tensor, ...rest: number[]) => mx.slice(t, [0, from, ...rest.map(() => 0)], [batch, to, ...rest], s);
    const step = block(cut(input, heads, headDim), cut(decay, heads), cut(b, groups, stateDim), cut(c, groups, stateDim), current, batch, to - from, shape, s);
    pieces.push(step.y);
    current = step.state;
  }
  const y = pieces.length === 1 ? pieces[0]! : mx.concatenate(pieces, 1, s);
  return { y: mx.astype(y, mx.dtypeOf(x), s), state: current };
}

/** input [B, T, heads, headDim] is dt x; decay [B, T, heads] the log of each token's decay. */
function block(
  input: Tensor,
  decay: Tensor,
  b: Tensor,
  c: Tensor,
  state: Tensor,
  batch: number,
  length: number,
  { heads, headDim, groups, stateDim }: SsmHeads,
  s: Stream,
): { y: Tensor; state: Tensor } {
  const repeat = heads / groups;
  const byHead = (t: Tensor) => mx.transpose(t, [0, 2, 1, 3], s);
  const wide = (t: Tensor) => (repeat === 1 ? t : mx.repeat(t, repeat, 1, s));
  const keys = byHead(b); // [B, groups, T, stateDim]
  const queries = byHead(c);
  const values = byHead(input); // [B, heads, T, headDim]
  const total = mx.cumsum(mx.swapaxes(decay, 1, 2, s), -1, {}, s); // [B, heads, T]
  // exp(total_i - total_j) for j <= i. Above the diagonal the difference is positive: cut before exp, masked after.
  const between = mx.exp(mx.minimum(mx.sub(mx.expandDims(total, -1, s), mx.expandDims(total, -2, s), s), 0, s), s);
  const pairs = wide(mx.matmul(queries, mx.swapaxes(keys, -1, -2, s), s));
  const within = mx.matmul(mx.tril(mx.mul(pairs, between, s), 0, s), values, s);
  const sinceStart = mx.expandDims(mx.exp(total, s), -1, s); // [B, heads, T, 1]
  const asked = mx.matmul(wide(mx.astype(queries, 'float32', s)), mx.swapaxes(state, -1, -2, s), s); // [B, heads, T, headDim]
  const y = byHead(mx.add(within, mx.mul(asked, sinceStart, s), s));

  const last = mx.slice(total, [0, 0, length - 1], [batch, heads, length], s); // [B, heads, 1]
  const untilEnd = mx.expandDims(mx.exp(mx.sub(last, total, s), s), -1, s);
  const taken = mx.matmul(mx.swapaxes(mx.mul(values, untilEnd, s), -1, -2, s), wide(mx.astype(keys, 'float32', s)), s);
  const kept = mx.mul(state, mx.reshape(mx.exp(last, s), [batch, heads, 1, 1], s), s);
  return { y, state: mx.reshape(mx.add(kept, taken, s), [batch, heads, headDim, stateDim], s) };
}
