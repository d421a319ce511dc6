/** Mamba-2: recurrent layers and nothing else. */

import * as mx from '../../mlx/ops.ts';
import { declareRmsNorm } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import type { DecoderLayer } from '../decoder.ts';
import { buildDecoder, openFamily } from '../family.ts';
import { declareMamba2, type Mamba2Options } from '../mamba2.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred } from '../parameters.ts';
import { readTimeLimits } from './time-limits.ts';

/** Of the norms before each layer; the configuration's is for those inside and the last. */
const BLOCK_NORM_EPS = 1e-5;

export function loadMamba2(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, {
    normEpsField: 'layer_norm_epsilon',
    normEps: 1e-5,
    // Without positions nothing limits the length.
    maxContext: 1 << 20,
    dtypeOf: 'backbone.norm_f.weight',
    embeddingPath: 'backbone.embeddings',
  });
  const { params, text, hidden, normEps, dtype, layerCount } = family;
  const width = { max: 1 << 20 };
  const heads = text.int('num_heads', width);
  const groups = text.int('n_groups', width, 1);
  if (heads % groups !== 0) throw text.error('n_groups', `a divisor of num_heads (${heads})`, groups);
  const bias = text.bool('use_bias', false);
  const mamba: Mamba2Options = {
    hidden,
    dtype,
    normEps,
    heads,
    groups,
    headDim: text.int('head_dim', width),
    stateDim: text.int('ssm_state_size', width, text.int('state_size', width)),
    kernel: text.int('conv_kernel', { min: 2, max: 64 }, 4),
    convBias: text.bool('use_conv_bias', true),
    inBias: bias,
    outBias: bias,
    limits: readTimeLimits(text),
    norm: 'gate-first',
  };
  const layers = Array.from({ length: layerCount }, (_, i): Deferred<DecoderLayer> => {
    const path = `backbone.layers.${i}`;
    const norm = declareRmsNorm(params, `${path}.norm`, hidden, BLOCK_NORM_EPS);
    const mixer = declareMamba2(params, `${path}.mixer`, mamba);
    return (loader) => {
      const [before, mix] = [norm(loader), mixer(loader)];
      return {
        makeCaches: () => mix.makeCaches(),
        mix: (x, caches, pass) => mx.add(mix.forward(before(x, pass.s), caches, pass), x, pass.s),
        feed: (x) => x,
      };
    };
  });
  return buildDecoder(family, {
    layers,
    tied: text.bool('tie_word_embeddings', true),
    norm: declareRmsNorm(params, 'backbone.norm_f', hidden, normEps),
  });
}
