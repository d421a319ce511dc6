/** Llama's shape with experts: qwen3_moe (norms of q and k, some layers dense) and mixtral. */

import type { ModelFolder } from '../config.ts';
import { declareMoe, softmaxThenTop, topThenSoftmax } from '../experts.ts';
import { buildDecoder, openFamily } from '../family.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import { preNormLayer, ropedAttention, slidingLayers } from './llama.ts';
import { readExperts, sparseLayers } from './sparse.ts';

export function loadQwen3Moe(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options);
  const { params, text, hidden, dtype, normEps, layerCount } = family;
  text.word('hidden_act', ['silu'], 'silu');
  const attend = ropedAttention(family, { theta: 1_000_000, qkNorm: { eps: normEps, kind: 'stored' } });
  const sparse = sparseLayers(text, layerCount);
  const { experts, perToken } = readExperts(text, 'num_experts');
  const normalise = text.bool('norm_topk_prob', true);
  const layers = slidingLayers(text, layerCount).map((window, i) => {
    const path = `model.layers.${i}.mlp`;
    const feed = sparse[i]
      ? declareMoe(
          params,
          { router: `${path}.gate`, experts: `${path}.switch_mlp`, perToken, route: softmaxThenTop(perToken, experts, normalise) },
          { hidden, inner: text.int('moe_intermediate_size', { max: 1 << 24 }), experts, dtype },
        )
      : declareGatedMlp(params, path, hidden, text.int('intermediate_size', { max: 1 << 24 }));
    return preNormLayer(family, i, attend(window), feed);
  });
  return buildDecoder(family, { layers, tied: text.bool('tie_word_embeddings', false) });
}

export function loadMixtral(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, { normEps: 1e-5 });
  const { params, text, hidden, dtype, layerCount } = family;
  text.word('hidden_act', ['silu'], 'silu');
  const attend = ropedAttention(family, { theta: 1_000_000 });
  const { experts, perToken } = readExperts(text, 'num_local_experts');
  const inner = text.int('intermediate_size', { max: 1 << 24 });
  const layers = Array.from({ length: layerCount }, (_, i) => {
    const path = `model.layers.${i}.block_sparse_moe`;
    const feed = declareMoe(
      params,
      { router: `${path}.gate`, experts: `${path}.switch_mlp`, perToken, route: topThenSoftmax(perToken, experts) },
      { hidden, inner, experts, dtype },
    );
    return preNormLayer(family, i, attend(null), feed);
  });
  return buildDecoder(family, { layers, tied: text.bool('tie_word_embeddings', false) });
}
