/** DeepSeek V3 (latent attention, experts in groups) and V3.2 (an indexer picks what is attended to). */
import * as mx from '../../mlx/ops.ts';
import { declareBlock, declareRmsNorm } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import { declareMoe, type Route, topPicks } from '../experts.ts';
import { buildDecoder, type Family, once, openFamily } from '../family.ts';
import type { IndexerOptions } from '../indexer.ts';
import { declareMla, type MlaOptions } from '../mla.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred, Parameters } from '../parameters.ts';
import { Rope } from '../rope.ts';
import { readRope } from '../rope-config.ts';
import { attentionMscale } from '../rope-scaling.ts';

export function loadDeepseekV3(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options);
  return build(family, mlaOptions(family));
}

export function loadDeepseekV32(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options);
  const { text, hidden, dtype } = family;
  const mla = mlaOptions(family);
  const { queryRank, ropeDim } = mla;
  if (queryRank === null) throw text.error('q_lora_rank', 'an integer: the indexer starts from the low-rank queries', null);
  const headDim = text.int('index_head_dim', { max: 1 << 16 }, 128);
  if (headDim < ropeDim) throw text.error('index_head_dim', `at least qk_rope_head_dim (${ropeDim})`, headDim);
  const config = readRope(text, headDim, { dims: ropeDim, traditional: text.bool('indexer_rope_interleave', false) });
  const indexer: IndexerOptions = {
    hidden,
    dtype,
    queryRank,
    headDim,
    heads: text.int('index_n_heads', { max: 1 << 16 }, 64),
    keeps: text.int('index_topk', {}, 2048),
    rope: once((loader) => new Rope(config, headDim, dtype, loader)),
  };
  return build(family, { ...mla, indexer });
}

function mlaOptions({ text, hidden, dtype }: Family): MlaOptions {
  const width = { max: 1 << 20 };
  const ropeDim = text.int('qk_rope_head_dim', width, 64);
  const plainDim = text.int('qk_nope_head_dim', width, 128);
  const config = readRope(text, ropeDim, { dims: ropeDim, traditional: true });
  return {
    hidden,
    dtype,
    ropeDim,
    plainDim,
    heads: text.int('num_attention_heads', width),
    queryRank: (text.raw('q_lora_rank') ?? null) === null ? null : text.int('q_lora_rank', width),
    latent: text.int('kv_lora_rank', width, 512),
    valueDim: text.int('v_head_dim', width, 128),
    scale: (plainDim + ropeDim) ** -0.5 * attentionMscale(text.section('rope_scaling')),
    bias: text.bool('attention_bias', false),
    rope: once((loader) => new Rope(config, ropeDim, dtype, loader)),
    indexer: null,
  };
}

function build(family: Family, mla: MlaOptions): CausalModel {
  const { params, text, hidden, normEps, layerCount } = family;
  text.word('topk_method', ['noaux_tc'], 'noaux_tc');
  text.word('scoring_func', ['sigmoid'], 'sigmoid');
  const size = { max: 1 << 24 };
  const inner = text.int('intermediate_size', size);
  const firstSparse = text.int('first_k_dense_replace', { min: 0 }, 0);
  const every = text.int('moe_layer_freq', {}, 1);
  const experts = text.int('n_routed_experts', { min: 0, max: 1 << 16 }, 0);
  const layers = Array.from({ length: layerCount }, (_, i) => {
    const path = `model.layers.${i}`;
    const sparse = experts > 0 && i >= firstSparse && i % every === 0;
    return declareBlock({
      mixer: declareMla(params, `${path}.self_attn`, mla),
      inputNorm: declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps),
      feedNorm: declareRmsNorm(params, `${path}.post_attention_layernorm`, hidden, normEps),
      feed: sparse ? declareGroupedMoe(family, `${path}.mlp`, experts) : declareGatedMlp(params, `${path}.mlp`, hidden, inner),
    });
  });
  return buildDecoder(family, { layers, tied: text.bool('tie_word_embeddings', false) });
}

function declareGroupedMoe({ params, text, hidden, dtype }: Family, path: string, experts: number) {
  const perToken = text.int('num_experts_per_tok', { max: experts }, 1);
  const inner = text.int('moe_intermediate_size', { max: 1 << 24 });
  const shared = text.int('n_shared_experts', { min: 0, max: 1 << 16 }, 0);
  const groups = text.int('n_group', { max: experts }, 1);
  if (experts % groups !== 0) throw text.error('n_group', `a divisor of n_routed_experts (${experts})`, groups);
  const route = declareGroupedRoute(params, `${path}.gate.e_score_correction_bias`, {
    experts,
    perToken,
    groups,
    usedGroups: text.int('topk_group', { max: groups }, 1),
    factor: text.number('routed_scaling_factor', {}, 1),
    normalise: text.bool('norm_topk_prob', true),
  });
  const beside = shared === 0 ? {} : { shared: declareGatedMlp(params, `${path}.shared_experts`, hidden, inner * shared) };
  return declareMoe(params, { router: `${path}.gate`, experts: `${path}.switch_mlp`, perToken, route, ...beside }, { hidden, inner, experts, dtype });
}

interface GroupedRoute {
  readonly experts: number;
  readonly perToken: number;
  readonly groups: number;
  readonly usedGroups: number;
  readonly factor: number;
  readonly normalise: boolean;
}

/** Sigmoid scores; a stored bias changes who is picked, not by how much; only the best groups of experts are open. */
function declareGroupedRoute(params: Parameters, path: string, options: GroupedRoute): Deferred<Route> {
  const { experts, perToken, groups, usedGroups, factor, normalise } = options;
  const bias = params.declare(path, [experts]);
  return (loader) => {
    const correction = loader.own(mx.astype(bias(loader), 'float32', loader.stream));
    return (logits, { rows, s }) => {
      const scores = mx.sigmoid(mx.astype(logits, 'float32', s), s);
      let ranked = mx.add(scores, correction, s);
      if (groups > usedGroups) {
        const size = experts / groups;
        const grouped = mx.reshape(ranked, [rows, groups, size], s);
        const strength = mx.sum(mx.topk(grouped, Math.min(2, size), -1, s), -1, false, s);
        const open = topPicks(strength, usedGroups, groups, rows, s);
        const flags = mx.putAlongAxis(mx.zeros([rows, groups], 'float32', s), open, mx.full([rows, usedGroups], 1, 'float32', s), -1, s);
        ranked = mx.reshape(mx.mul(grouped, mx.expandDims(flags, -1, s), s), [rows, experts], s);
      }
      const picks = topPicks(ranked, perToken, experts, rows, s);
      const weights = mx.takeAlongAxis(scores, picks, -1, s);
      const shares = normalise && perToken > 1 ? mx.div(weights, mx.sum(weights, -1, true, s), s) : weights;
      return { picks, weights: mx.mul(shares, factor, s) };
    };
  };
}
