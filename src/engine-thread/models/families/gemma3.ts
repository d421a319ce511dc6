/**
 * Gemma 3: most layers see a window, every n-th sees everything and turns its heads more slowly; norms before and behind each
 * part, stored as offsets from 1; the embedding is scaled and, where there is no head, serves as it.
 */
import { RotatingKvCache } from '../../cache/rotating-cache.ts';
import * as mx from '../../mlx/ops.ts';
import type { Tensor } from '../../mlx/types.ts';
import { declareAttention } from '../attention.ts';
import { declareBlock, declareRmsNorm } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import { buildDecoder, once, openFamily } from '../family.ts';
import { readHeads } from '../heads.ts';
import { declareGatedMlp, geGlu } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import { Rope } from '../rope.ts';
import { readRope } from '../rope-config.ts';

export function loadGemma3(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, { maxContext: 32_768 });
  const { params, text, hidden, dtype, normEps, layerCount } = family;
  params.normsAreOffsets = true;
  text.word('hidden_activation', ['gelu_pytorch_tanh'], 'gelu_pytorch_tanh');
  const heads = readHeads(text, hidden, 256);
  const inner = text.int('intermediate_size', { max: 1 << 24 });
  const window = text.int('sliding_window', {}, 512);
  const every = text.int('sliding_window_pattern', {}, 6);
  const scale = text.number('query_pre_attn_scalar', { min: 1e-6 }, 256) ** -0.5;
  const globalRope = readRope(text, heads.headDim, { theta: 1_000_000 });
  const localRope = { ...globalRope, base: text.number('rope_local_base_freq', { min: 1 }, 10_000), dims: heads.headDim };
  const everywhere = once((loader) => new Rope(globalRope, heads.headDim, dtype, loader));
  const nearby = once((loader) => new Rope({ dims: localRope.dims, base: localRope.base, scale: 1 }, heads.headDim, dtype, loader));

  const layers = Array.from({ length: layerCount }, (_, i) => {
    const path = `model.layers.${i}`;
    const norm = (name: string) => declareRmsNorm(params, `${path}.${name}`, hidden, normEps);
    const full = (i + 1) % every === 0;
    const attention = { ...heads, hidden, dtype, scale, qkNorm: { eps: normEps, kind: 'stored' as const }, rope: full ? everywhere : nearby };
    return declareBlock({
      mixer: declareAttention(
        params,
        `${path}.self_attn`,
        full ? attention : { ...attention, makeCache: (shape) => new RotatingKvCache({ ...shape, window }) },
      ),
      feed: declareGatedMlp(params, `${path}.mlp`, hidden, inner, { activation: geGlu }),
      inputNorm: norm('input_layernorm'),
      mixedNorm: norm('post_attention_layernorm'),
      feedNorm: norm('pre_feedforward_layernorm'),
      fedNorm: norm('post_feedforward_layernorm'),
    });
  });
  return buildDecoder(family, {
    layers,
    tied: !params.has('lm_head.weight'),
    around: (loader) => {
      // Trained with the factor in bfloat16, whatever the type is now.
      const factor = mx.scope(() => loader.own(mx.astype(mx.full([], Math.sqrt(hidden), 'bfloat16', loader.stream), dtype, loader.stream)));
      return { enter: (x: Tensor, s) => mx.mul(x, factor, s) };
    },
  });
}
