/**
 * Picks the next token from one row of float32 logits, on the host, so that the choice depends on the logits and the
 * seed alone and not on the device.
 *
 * Order: repetition penalty, temperature, top-k, top-p, min-p, draw. Candidates are ordered by logit, ties by id, so
 * that equal logits give equal answers.
 */
import { TidemarkError } from '../../shared/errors.ts';
import { uniformAt } from './random.ts';
import type { SamplingParams } from './sampling.ts';

export class Sampler {
  readonly params: SamplingParams;

  constructor(params: SamplingParams) {
    this.params = params;
  }

  /** True when the answer is the plain argmax: the logits need not leave the device. */
  get isArgmax(): boolean {
    return this.params.temperature === 0 && this.params.repetitionPenalty === 1;
  }

  /**
   * @param logits one row; changed in place when a repetition penalty is set
   * @param recent ids before this one, oldest first (prompt and answer); the penalty looks at the last `repetitionContext`
   * @param index which draw of the answer this is, from 0
   * @throws {TidemarkError} MLX_ERROR when the row holds no usable number
   */
  sample(logits: Float32Array, recent: ArrayLike<number>, index: number): number {
    const { temperature, topK, topP, minP, repetitionPenalty, repetitionContext, seed } = this.params;
    if (repetitionPenalty !== 1) penalize(logits, recent, repetitionContext, repetitionPenalty);
    const best = argmax(logits);
    if (temperature === 0 || topK === 1) return best;

    const top = logits[best]!;
    const weightOf = (id: number) => Math.exp((logits[id]! - top) / temperature);
    let ids: Uint32Array;
    if (topK > 0 && topK < logits.length) ids = largest(logits, topK);
    else if (topP < 1) ids = nucleusCandidates(logits, top, temperature, topP);
    else ids = Uint32Array.from(logits.keys());

    const weights = Float64Array.from(ids, weightOf);
    // Without a top-k the list may be only the head of the vocabulary; top-p is measured against everything.
    const total = topK > 0 && topK < logits.length ? sum(weights, weights.length) : totalWeight(logits, top, temperature);
    let count = ids.length;
    if (topP < 1) {
      let mass = 0;
      for (let i = 0; i < count; i++) {
        mass += weights[i]!;
        if (mass >= topP * total) count = i + 1;
      }
    }
    if (minP > 0) {
      // Weights are relative to the best token, whose weight is 1.
      if (topP < 1 || (topK > 0 && topK < logits.length)) {
        let kept = 1;
        while (kept < count && weights[kept]! >= minP) kept++;
        count = kept;
      } else {
        for (let i = 0; i < count; i++) if (weights[i]! < minP) weights[i] = 0;
      }
    }
    return draw(ids, weights, count, uniformAt(seed, index));
  }
}

function draw(ids: Uint32Array, weights: Float64Array, count: number, uniform: number): number {
  let left = uniform * sum(weights, count);
  let last = 0;
  for (let i = 0; i < count; i++) {
    if (weights[i] === 0) continue;
    last = i;
    left -= weights[i]!;
    if (left < 0) break;
  }
  // Rounding can leave a crumb behind the last candidate; it belongs to that one.
  return ids[last]!;
}

function sum(values: Float64Array, count: number): number {
  let total = 0;
  for (let i = 0; i < count; i++) total += values[i]!;
  return total;
}

function totalWeight(logits: Float32Array, top: number, temperature: number): number {
  let total = 0;
  for (let i = 0; i < logits.length; i++) total += Math.exp((logits[i]! - top) / temperature);
  return total;
}

/** Index of the largest value, the first among equals. -Infinity is a value that is never chosen; NaN is an error. */
export function argmax(logits: Float32Array): number {
  let best = -1;
  let top = -Infinity;
  for (let i = 0; i < logits.length; i++) {
    const value = logits[i]!;
    if (value > top) {
      top = value;
      best = i;
    } else if (Number.isNaN(value)) {
      best = -1;
      break;
    }
  }
  if (best < 0 || top === Infinity) {
    throw new TidemarkError('MLX_ERROR', 'The model gave logits that are not finite numbers. Try `compute: "float32"`; if it stays, the weights are damaged.', {
      details: { vocabulary: logits.length },
    });
  }
  return best;
}

/** Positive logits are divided, negative ones multiplied: either way a seen token becomes less likely for a penalty above 1. */
function penalize(logits: Float32Array, recent: ArrayLike<number>, context: number, penalty: number): void {
  const seen = new Set<number>();
  for (let i = Math.max(0, recent.length - context); i < recent.length; i++) seen.add(recent[i]!);
  for (const id of seen) {
    const value = logits[id];
    if (value !== undefined) logits[id] = value > 0 ? value / penalty : value * penalty;
  }
}

function byLogit(logits: Float32Array) {
  return (a: number, b: number) => logits[b]! - logits[a]! || a - b;
}

/** The ids of the `k` largest logits, best first. One pass with a bounded min-heap: k is small, the vocabulary is not. */
function largest(logits: Float32Array, k: number): Uint32Array {
  const heap = new Uint32Array(k);
  const worse = (a: number, b: number) => logits[a]! < logits[b]! || (logits[a] === logits[b] && a > b);
  const sink = (at: number, size: number) => {
    for (let i = at; ; ) {
      let child = 2 * i + 1;
      if (child >= size) return;
      if (child + 1 < size && worse(heap[child + 1]!, heap[child]!)) child++;
      if (!worse(heap[child]!, heap[i]!)) return;
      const swap = heap[i]!;
      heap[i] = heap[child]!;
      heap[child] = swap;
      i = child;
    }
  };
  for (let i = 0; i < k; i++) heap[i] = i;
  for (let i = (k >> 1) - 1; i >= 0; i--) sink(i, k);
  for (let id = k; id < logits.length; id++) {
    if (!worse(heap[0]!, id)) continue;
    heap[0] = id;
    sink(0, k);
  }
  return heap.sort(byLogit(logits));
}

/**
 * The head of the vocabulary that holds at least `topP` of the mass, best first, without sorting all of it: takes ids
 * above a falling threshold until their mass suffices. The result equals the full sort cut at the same place.
 */
function nucleusCandidates(logits: Float32Array, top: number, temperature: number, topP: number): Uint32Array {
  const total = totalWeight(logits, top, temperature);
  for (const depth of [6, 12, 24]) {
    const threshold = top - depth * temperature;
    const ids: number[] = [];
    let mass = 0;
    for (let i = 0; i < logits.length; i++) {
      if (logits[i]! < threshold) continue;
      ids.push(i);
      mass += Math.exp((logits[i]! - top) / temperature);
    }
    // The margin keeps a sum in another order from deciding differently.
    if (mass >= topP * total * (1 + 1e-9)) return Uint32Array.from(ids).sort(byLogit(logits));
  }
  return Uint32Array.from(logits.keys()).sort(byLogit(logits));
}
