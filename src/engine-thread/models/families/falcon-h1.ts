/** Falcon H1: each layer has Mamba-2 and attention side by side on the same input. Multipliers are in the stored weights. */
import * as mx from '../../mlx/ops.ts';
import { declareAttention } from '../attention.ts';
import { declareBlock, declareRmsNorm, type Mixer } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import { buildDecoder, openFamily } from '../family.ts';
import { declareMamba2, type Mamba2Options } from '../mamba2.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred } from '../parameters.ts';
import { ropedAttention } from './llama.ts';

export function loadFalconH1(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, { normEps: 1e-5, dtypeOf: 'model.final_layernorm.weight' });
  const { params, text, hidden, normEps, dtype, layerCount } = family;
  const width = { max: 1 << 20 };
  const heads = text.int('mamba_n_heads', width);
  const headDim = text.int('mamba_d_head', width);
  const inner = text.int('mamba_d_ssm', width, heads * headDim);
  if (inner !== heads * headDim) throw text.error('mamba_d_ssm', `mamba_n_heads x mamba_d_head (${heads * headDim})`, inner);
  const groups = text.int('mamba_n_groups', width, 1);
  if (heads % groups !== 0) throw text.error('mamba_n_groups', `a divisor of mamba_n_heads (${heads})`, groups);
  const normed = text.bool('mamba_rms_norm', false);
  const mamba: Mamba2Options = {
    hidden,
    dtype,
    normEps,
    heads,
    headDim,
    groups,
    stateDim: text.int('mamba_d_state', width),
    kernel: text.int('mamba_d_conv', { min: 2, max: 64 }, 4),
    convBias: text.bool('mamba_conv_bias', true),
    inBias: text.bool('mamba_proj_bias', false),
    outBias: text.bool('projectors_bias', false),
    limits: [0, Infinity],
    norm: !normed ? 'none' : text.bool('mamba_norm_before_gate', false) ? 'norm-first' : 'gate-first',
  };
  const bias = text.bool('attention_bias', false);
  const attention = ropedAttention(family, { theta: 100_000_000_000, bias: { input: bias, output: bias } })(null);
  const mlp = { bias: text.bool('mlp_bias', false) };
  const mlpInner = text.int('intermediate_size', { max: 1 << 24 });
  const layers = Array.from({ length: layerCount }, (_, i) => {
    const path = `model.layers.${i}`;
    return declareBlock({
      mixer: sideBySide(declareMamba2(params, `${path}.mamba`, mamba), declareAttention(params, `${path}.self_attn`, attention)),
      inputNorm: declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps),
      feedNorm: declareRmsNorm(params, `${path}.pre_ff_layernorm`, hidden, normEps),
      feed: declareGatedMlp(params, `${path}.feed_forward`, hidden, mlpInner, mlp),
    });
  });
  const tied = text.bool('tie_word_embeddings', true);
  const factor = text.number('lm_head_multiplier', {}, 0.0390625) / text.number('embedding_multiplier', {}, 5.656854249492381);
  return buildDecoder(family, {
    layers,
    tied,
    norm: declareRmsNorm(params, 'model.final_layernorm', hidden, normEps),
    ...(tied ? { around: () => ({ cap: (logits, s) => mx.mul(logits, factor, s) }) } : {}),
  });
}

/** Two mixers of one input, added up. The state of both is kept, each in its own caches. */
function sideBySide(first: Deferred<Mixer>, second: Deferred<Mixer>): Deferred<Mixer> {
  return (loader) => {
    const [a, b] = [first(loader), second(loader)];
    const own = a.makeCaches().length;
    return {
      makeCaches: () => [...a.makeCaches(), ...b.makeCaches()],
      forward: (x, caches, pass) => mx.add(a.forward(x, caches.slice(0, own), pass), b.forward(x, caches.slice(own), pass), pass.s),
    };
  };
}
