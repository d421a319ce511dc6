/**
 * Delta net layers with a gated full-attention layer every few: Qwen3.5's text model, and Qwen3-Next, whose projections are
 * stored fused and whose feed-forward has experts beside one that every token goes through.
 */
import * as mx from '../../mlx/ops.ts';
import { declareAttention } from '../attention.ts';
import { declareBlock, declareRmsNorm, type FeedForward } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import { type DeltaNetOptions, declareDeltaNet } from '../delta-net.ts';
import { declareMoe, softmaxThenTop } from '../experts.ts';
import { buildDecoder, type Family, once, openFamily } from '../family.ts';
import { applyMatrix, declareRows, finish } from '../linear.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred, Parameters } from '../parameters.ts';
import { Rope } from '../rope.ts';
import { type Qwen35Config, readQwen35Config } from './qwen3-5-config.ts';
import { readExperts, sparseLayers } from './sparse.ts';

/** The feed-forward block of a layer. */
type FeedOf = (i: number, path: string) => Deferred<FeedForward>;

/**
 * Checks everything, then reads the weights.
 *
 * @throws {TidemarkError} MODEL_CONFIG_INVALID, MODEL_TENSOR_MISSING, MODEL_TENSOR_SHAPE, MODEL_FILE_TRUNCATED, …
 */
export function loadQwen35(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openHybrid(folder, options);
  const { text, params, hidden } = family;
  if (text.int('num_experts', { min: 0 }, 0) > 0) throw text.error('num_experts', '0 (this model type has no experts)', text.raw('num_experts'));
  const config = readQwen35Config(folder);
  return build(family, config, false, (_, path) => declareGatedMlp(params, `${path}.mlp`, hidden, config.intermediateSize));
}

export function loadQwen3Next(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openHybrid(folder, options);
  const { text, params, hidden, dtype } = family;
  const config = readQwen35Config(folder);
  const sparse = sparseLayers(text, family.layerCount);
  const { experts, perToken } = readExperts(text, 'num_experts');
  const inner = text.int('moe_intermediate_size', { max: 1 << 24 });
  const route = softmaxThenTop(perToken, experts, text.bool('norm_topk_prob', true));
  const sharedInner = text.int('shared_expert_intermediate_size', { max: 1 << 24 });
  return build(family, config, true, (i, path) => {
    if (!sparse[i]) return declareGatedMlp(params, `${path}.mlp`, hidden, config.intermediateSize);
    const shared = declareGatedExpert(params, `${path}.mlp`, hidden, sharedInner);
    const places = { router: `${path}.mlp.gate`, experts: `${path}.mlp.switch_mlp` };
    return declareMoe(params, { ...places, perToken, route, shared }, { hidden, inner, experts, dtype });
  });
}

/** Sees every token; how much of what it says is added, the token decides. */
function declareGatedExpert(params: Parameters, path: string, hidden: number, inner: number): Deferred<FeedForward> {
  const expert = declareGatedMlp(params, `${path}.shared_expert`, hidden, inner);
  const gate = declareRows(params, { path: `${path}.shared_expert_gate`, out: 1 }, hidden, false);
  return (loader) => {
    const mlp = expert(loader);
    const matrix = mx.scope(() => finish(gate.read(loader), loader));
    return {
      forward: (x, step) => mx.mul(mx.sigmoid(applyMatrix(matrix, x, step.rows, step.device, step.s), step.s), mlp.forward(x, step), step.s),
    };
  };
}

function openHybrid(folder: ModelFolder, options: LoadOptions): Family {
  const family = openFamily(folder, options);
  const { params } = family;
  // Converted checkpoints have the convolution as [channels, kernel, 1] and norms as they multiply; those not converted
  // have [channels, 1, kernel] and norms as offsets from 1.
  params.normsAreOffsets = params.entriesEndingIn('.conv1d.weight').some(({ shape }) => shape.length === 3 && shape[2] !== 1);
  return family;
}

function build(family: Family, config: Qwen35Config, fused: boolean, feedOf: FeedOf): CausalModel {
  const { params, hidden, dtype, normEps } = family;
  const deltaNet: DeltaNetOptions = { ...config.deltaNet, hidden, kernel: config.deltaNet.convKernel, normEps, dtype, fused };
  const { rope: ropeConfig, ...heads } = config.attention;
  const rope = once((loader) => new Rope(ropeConfig, heads.headDim, dtype, loader));
  const attention = { ...heads, hidden, dtype, rope, qkNorm: { eps: normEps, kind: 'stored' as const } };
  const layers = config.layerTypes.map((type, i) => {
    const path = `model.layers.${i}`;
    return declareBlock({
      mixer: type === 'linear_attention' ? declareDeltaNet(params, `${path}.linear_attn`, deltaNet) : declareAttention(params, `${path}.self_attn`, attention),
      inputNorm: declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps),
      feedNorm: declareRmsNorm(params, `${path}.post_attention_layernorm`, hidden, normEps),
      feed: feedOf(i, path),
    });
  });
  return buildDecoder(family, { layers, tied: config.tiedEmbeddings });
}
