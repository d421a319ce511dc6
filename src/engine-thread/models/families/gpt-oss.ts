/**
 * gpt-oss: attention with sinks and biases, every other layer with a window; every layer has experts, whose gate is
 * clipped and whose linear part has 1 added.
 */
import * as mx from '../../mlx/ops.ts';
import type { ModelFolder } from '../config.ts';
import { declareMoe, topThenSoftmax } from '../experts.ts';
import { buildDecoder, openFamily } from '../family.ts';
import type { GateActivation } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import { preNormLayer, ropedAttention } from './llama.ts';
import { readExperts } from './sparse.ts';

const SLOPE = 1.702;
const LIMIT = 7;

const clippedGlu: GateActivation = (gate, up, s) => {
  const capped = mx.minimum(gate, LIMIT, s);
  const linear = mx.add(mx.clip(up, -LIMIT, LIMIT, s), 1, s);
  return mx.mul(linear, mx.mul(capped, mx.sigmoid(mx.mul(capped, SLOPE, s), s), s), s);
};

export function loadGptOss(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, { normEps: 1e-5 });
  const { params, text, hidden, dtype, layerCount } = family;
  const inner = text.int('intermediate_size', { max: 1 << 24 });
  const { experts, perToken } = readExperts(text, 'num_local_experts');
  const attend = ropedAttention(family, { theta: 150_000, sinks: true, bias: { input: true, output: true } });
  const window = text.int('sliding_window', {}, 128);
  const types = text.words('layer_types', ['full_attention', 'sliding_attention'], layerCount);
  const layers = Array.from({ length: layerCount }, (_, i) => {
    const path = `model.layers.${i}.mlp`;
    const full = types === null ? i % 2 === 1 : types[i] === 'full_attention';
    const feed = declareMoe(
      params,
      { router: `${path}.router`, routerBias: true, experts: `${path}.experts`, perToken, route: topThenSoftmax(perToken, experts) },
      { hidden, inner, experts, dtype, activation: clippedGlu, bias: true },
    );
    return preNormLayer(family, i, attend(full ? null : window), feed);
  });
  return buildDecoder(family, { layers, tied: text.bool('tie_word_embeddings', false) });
}
