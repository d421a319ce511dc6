/** Qwen3.5's text model: delta net layers with a gated full-attention layer every few, each followed by a gated MLP. */
import { declareAttention } from '../attention.ts';
import { declareBlock, declareRmsNorm } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import { type DeltaNetOptions, declareDeltaNet } from '../delta-net.ts';
import { buildDecoder, once, openFamily } from '../family.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import { Rope } from '../rope.ts';
import { readQwen35Config } from './qwen3-5-config.ts';

/**
 * Checks everything, then reads the weights.
 *
 * @throws {TidemarkError} MODEL_CONFIG_INVALID, MODEL_TENSOR_MISSING, MODEL_TENSOR_SHAPE, MODEL_FILE_TRUNCATED, …
 */
export function loadQwen35(folder: ModelFolder, options: LoadOptions): CausalModel {
  const config = readQwen35Config(folder);
  const family = openFamily(folder, options);
  const { params, hidden, dtype, normEps } = family;
  // Converted checkpoints have the convolution as [channels, kernel, 1] and norms as they multiply; those not converted
  // have [channels, 1, kernel] and norms as offsets from 1.
  params.normsAreOffsets = params.entriesEndingIn('.conv1d.weight').some(({ shape }) => shape.length === 3 && shape[2] !== 1);

  const deltaNet: DeltaNetOptions = { ...config.deltaNet, hidden, kernel: config.deltaNet.convKernel, normEps, dtype };
  const { rope: ropeConfig, ...heads } = config.attention;
  const rope = once((loader) => new Rope(ropeConfig, heads.headDim, dtype, loader));
  const attention = { ...heads, hidden, dtype, rope, qkNorm: { eps: normEps, kind: 'stored' as const } };
  const layers = config.layerTypes.map((type, i) => {
    const path = `model.layers.${i}`;
    return declareBlock({
      mixer: type === 'linear_attention' ? declareDeltaNet(params, `${path}.linear_attn`, deltaNet) : declareAttention(params, `${path}.self_attn`, attention),
      inputNorm: declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps),
      feedNorm: declareRmsNorm(params, `${path}.post_attention_layernorm`, hidden, normEps),
      feed: declareGatedMlp(params, `${path}.mlp`, hidden, config.intermediateSize),
    });
  });
  return buildDecoder(family, { layers, tied: config.tiedEmbeddings });
}
