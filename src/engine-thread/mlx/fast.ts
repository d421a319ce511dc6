import { mlx } from './binding.ts';
import type { Stream, Tensor } from './types.ts';

const native = mlx();

/** MLX's fused kernels. `rope`'s offset is a number, or an int32 tensor with one offset per row; give `base` or `freqs`. */
export const { rmsNorm, layerNorm, rope } = native;

export interface AttentionOptions {
  /** 'causal', or a tensor that is added (float) or selects (bool). */
  mask?: 'causal' | Tensor | null;
  /** One logit per head that takes part in the softmax only. */
  sinks?: Tensor | null;
}

/** softmax(scale * q k^T + mask) v over [B, heads, T, D]; fewer key heads than query heads are grouped. */
export function sdpa(q: Tensor, k: Tensor, v: Tensor, scale: number, options: AttentionOptions, s: Stream): Tensor {
  const mask = options.mask ?? null;
  return mask === 'causal'
    ? native.sdpa(q, k, v, scale, 'causal', null, options.sinks ?? null, s)
    : native.sdpa(q, k, v, scale, mask === null ? '' : 'array', mask, options.sinks ?? null, s);
}

/**
 * The gated delta rule over T steps: S *= g; S += beta (v - S k) k^T; out = S q. No scale of its own: scale q before.
 * q, k [B, T, Hk, Dk]; v [B, T, Hv, Dv]; gates, beta [B, T, Hv]; state [B, Hv, Dv, Dk] in float32. Returns [out, state].
 */
export function gatedDeltaUpdate(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  gates: Tensor,
  beta: Tensor,
  state: Tensor | null,
  mask: Tensor | null,
  s: Stream,
): [out: Tensor, state: Tensor] {
  return native.gatedDeltaUpdate(q, k, v, gates, beta, state, mask, s) as [Tensor, Tensor];
}
