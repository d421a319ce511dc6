/**
 * The gated delta rule: a matrix per head that forgets (gate), and writes the difference between a value and what the
 * matrix already says about its key.
 *
 *     S <- exp(g) S;   S <- S + beta (v - S k) k^T;   out = S q          S: [Dv, Dk]
 *
 * One token runs it as written. Many tokens run it in chunks of C: within a chunk all corrections follow from one
 * triangular system (I + A) X = B with A[i][j] = beta_i (k_i . k_j) exp(G_i - G_j) for j < i, G the running sum of g. Its
 * inverse is built block by block, and every exponent used is of a difference that is at most 0: nothing overflows, and
 * what underflows is really gone. Everything is float32 whatever the model computes in.
 */
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';

/** Heads as the rule sees them: each of the `keyHeads` serves `valueHeads / keyHeads` value heads. */
export interface DeltaHeads {
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
}

/** Tokens per chunk: the triangular system grows with it, the number of sequential steps shrinks. 32 was fastest measured. */
export const DELTA_CHUNK = 32;

/**
 * One token of each row.
 *
 * @param q k [B, Hk, Dk], normalised and scaled
 * @param v [B, Hv, Dv]
 * @param decay exp(g), beta [B, Hv], float32
 * @param state [B, Hv, Dv, Dk], float32
 * @returns out [B, Hv, Dv] and the new state, float32
 */
export function deltaStep(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  decay: Tensor,
  beta: Tensor,
  state: Tensor,
  batch: number,
  { keyHeads, valueHeads, keyDim, valueDim }: DeltaHeads,
  s: Stream,
): { out: Tensor; state: Tensor } {
  const repeat = valueHeads / keyHeads;
  // [B, Hk, R, Dv, Dk]: keys and queries meet their value heads by broadcasting. As products, because those are the
  // cheapest operations on a whole matrix that MLX has on CPU.
  const key = mx.reshape(k, [batch, keyHeads, 1, keyDim, 1], s);
  const query = mx.reshape(q, [batch, keyHeads, 1, keyDim, 1], s);
  const value = mx.reshape(v, [batch, keyHeads, repeat, valueDim, 1], s);
  const perHead = [batch, keyHeads, repeat, 1, 1];
  const faded = mx.mul(mx.reshape(state, [batch, keyHeads, repeat, valueDim, keyDim], s), mx.reshape(decay, perHead, s), s);
  const known = mx.matmul(faded, key, s);
  const correction = mx.mul(mx.sub(value, known, s), mx.reshape(beta, perHead, s), s);
  const keyRow = mx.broadcastTo(mx.reshape(k, [batch, keyHeads, 1, 1, keyDim], s), [batch, keyHeads, repeat, 1, keyDim], s);
  const next = mx.addmm(faded, correction, keyRow, 1, 1, s);
  const out = mx.matmul(next, query, s);
  return { out: mx.reshape(out, [batch, valueHeads, valueDim], s), state: mx.reshape(next, [batch, valueHeads, valueDim, keyDim], s) };
}

/**
 * Many tokens of each row; `length` must be a multiple of `chunk`. Padding tokens with g = 0 and beta = 0 change nothing.
 *
 * @param q k [B, Hk, T, Dk], normalised and scaled
 * @param v [B, Hv, T, Dv]
 * @param g log of the decay (at most 0), beta [B, Hv, T]
 * @param state [B, Hv, Dv, Dk]; all float32
 * @returns out [B, Hv, T, Dv] and the new state
 */
export function deltaChunks(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  g: Tensor,
  beta: Tensor,
  state: Tensor,
  batch: number,
  length: number,
  chunk: number,
  { keyHeads, valueHeads, keyDim, valueDim }: DeltaHeads,
  s: Stream,
): { out: Tensor; state: Tensor } {
  const repeat = valueHeads / keyHeads;
  const count = length / chunk;
  // Leading axes everywhere: [B, Hk, R, chunk number]; R is 1 for keys and queries.
  const lead = [batch, keyHeads, repeat, count];
  const keys = mx.reshape(k, [batch, keyHeads, 1, count, chunk, keyDim], s);
  const queries = mx.reshape(q, [batch, keyHeads, 1, count, chunk, keyDim], s);
  const values = mx.reshape(v, [...lead, chunk, valueDim], s);
  const betas = mx.reshape(beta, [...lead, chunk, 1], s);

  const total = mx.cumsum(mx.reshape(g, [...lead, chunk], s), -1, {}, s);
  const column = mx.expandDims(total, -1, s);
  const { lower, strict } = masks(chunk, s);
  // exp(G_i - G_j) for j <= i. Above the diagonal the difference may be positive: cut before exp, masked after.
  const between = mx.mul(mx.exp(mx.minimum(mx.sub(column, mx.expandDims(total, -2, s), s), 0, s), s), lower, s);
  const sinceStart = mx.exp(column, s);
  const last = mx.slice(total, [0, 0, 0, 0, chunk - 1], [...lead, chunk], s);
  const untilEnd = mx.exp(mx.sub(mx.expandDims(last, -1, s), column, s), s);
  const wholeChunk = mx.expandDims(mx.exp(last, s), -1, s);

  const keysT = mx.swapaxes(keys, -1, -2, s);
  const a = mx.mul(mx.mul(mx.matmul(keys, keysT, s), mx.mul(between, strict, s), s), betas, s);
  const inverse = invertUnitLower(a, lead, chunk, s);
  const wanted = mx.matmul(inverse, mx.mul(values, betas, s), s); // what each token would write into an empty state
  const recalled = mx.matmul(inverse, mx.mul(keys, mx.mul(betas, sinceStart, s), s), s); // how it asks the chunk's first state
  const keysAtEnd = mx.mul(keys, untilEnd, s);

  // [Dk, Dv] inside the loop: products with the matrix on the right side are twice as fast as with its transpose.
  let current = mx.contiguous(mx.swapaxes(mx.reshape(state, [batch, keyHeads, repeat, valueDim, keyDim], s), -1, -2, s), s);
  const states: Tensor[] = [];
  const written: Tensor[] = [];
  for (let n = 0; n < count; n++) {
    const at = (t: Tensor, rows: number, width: number) => mx.squeeze(mx.slice(t, [0, 0, 0, n, 0, 0], [batch, keyHeads, repeat, n + 1, rows, width], s), 3, s);
    const write = mx.addmm(at(wanted, chunk, valueDim), at(recalled, chunk, keyDim), current, -1, 1, s);
    states.push(current);
    written.push(write);
    const faded = mx.mul(current, at(wholeChunk, 1, 1), s);
    current = mx.addmm(faded, mx.swapaxes(at(keysAtEnd, chunk, keyDim), -1, -2, s), write, 1, 1, s);
  }
  const within = mx.matmul(mx.mul(mx.matmul(queries, keysT, s), between, s), mx.stack(written, 3, s), s);
  const out = mx.addmm(within, mx.mul(queries, sinceStart, s), mx.stack(states, 3, s), 1, 1, s);
  return {
    out: mx.reshape(out, [batch, valueHeads, length, valueDim], s),
    state: mx.reshape(mx.contiguous(mx.swapaxes(current, -1, -2, s), s), [batch, valueHeads, valueDim, keyDim], s),
  };
}

/** 1 on and below, and 1 below, the diagonal. */
function masks(n: number, s: Stream): { lower: Tensor; strict: Tensor } {
  const ones = mx.full([n, n], 1, 'float32', s);
  return { lower: mx.tril(ones, 0, s), strict: mx.tril(ones, -1, s) };
}

/**
 * (I + A)^-1 for strictly lower triangular A [..., n, n], n a power of two.
 *
 * Blocks of 4 are inverted by (I - A)(I + A^2), which is exact there because A^4 = 0. Two inverted neighbours make one
 * of twice the size: [[P, 0], [-R L P, R]] with L the block between them. A series over the whole matrix would be
 * shorter, but its powers grow beyond float32's precision when keys repeat.
 */
export function invertUnitLower(a: Tensor, lead: readonly number[], n: number, s: Stream): Tensor {
  const base = Math.min(4, n);
  const axes = lead.length;
  let inverse = diagonalBlocks(a, lead, n, base, 0, s);
  const identity = mx.tril(mx.triu(mx.full([base, base], 1, 'float32', s), 0, s), 0, s);
  const first = mx.sub(identity, inverse, s);
  inverse = base < 4 ? (base === 1 ? mx.add(inverse, 1, s) : first) : mx.matmul(first, mx.add(identity, mx.matmul(inverse, inverse, s), s), s);
  for (let size = base; size < n; size *= 2) {
    const pairs = n / (2 * size);
    const halves = mx.reshape(inverse, [...lead, pairs, 2, size, size], s);
    const pick = (half: 0 | 1) => {
      const start = [...lead.map(() => 0), 0, half, 0, 0];
      return mx.squeeze(mx.slice(halves, start, [...lead, pairs, half + 1, size, size], s), axes + 1, s);
    };
    const upper = pick(0);
    const right = pick(1);
    const between = diagonalBlocks(a, lead, n, size, 1, s);
    const left = mx.neg(mx.matmul(right, mx.matmul(between, upper, s), s), s);
    const zeros = mx.zeros([...lead, pairs, size, size], 'float32', s);
    inverse = mx.concatenate([mx.concatenate([upper, zeros], -1, s), mx.concatenate([left, right], -1, s)], -2, s);
  }
  return mx.reshape(inverse, [...lead, n, n], s);
}

/**
 * Blocks [size, size] of a as [..., count, size, size]: those on the diagonal (`below` 0), or those that join each pair of
 * diagonal neighbours (`below` 1).
 */
function diagonalBlocks(a: Tensor, lead: readonly number[], n: number, size: number, below: 0 | 1, s: Stream): Tensor {
  const step = size * (1 + below);
  const zeros = lead.map(() => 0);
  const blocks: Tensor[] = [];
  for (let at = 0; at < n; at += step) {
    const row = at + below * size;
    blocks.push(mx.slice(a, [...zeros, row, at], [...lead, row + size, at + size], s));
  }
  return mx.stack(blocks, lead.length, s);
}
