/** DeepSeek V4.1's text model: compressed attention, experts in every layer, several residual streams. */

import { compactElements } from '../../boundary/compaction.ts';
import { COMPRESSED_CLASS, POOLED_ELEMENTS, RATIO_AT } from '../../cache/compressed-cache.ts';
import * as mx from '../../mlx/ops.ts';
import { declareRmsNorm, type FeedForward, type Mixer } from '../block.ts';
import { CompressedAttention, type CompressedOptions } from '../compressed-attention.ts';
import { Picker, type PickerOptions } from '../compressed-index.ts';
import type { ModelFolder } from '../config.ts';
import type { DecoderLayer } from '../decoder.ts';
import { declareMoe, type Route, topPicks } from '../experts.ts';
import { buildDecoder, type Family, openFamily } from '../family.ts';
import { collapse, declareHyperConnection, type HyperOptions, spread } from '../hyper-connection.ts';
import { type DeclaredRows, declareRows, finish } from '../linear.ts';
import { declareGatedMlp, type GateActivation, swiGlu } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred, Parameters } from '../parameters.ts';
import { Rope } from '../rope.ts';
import { yarnPeriods } from '../rope-scaling.ts';
import { readV41Layers, type V41Layer } from './deepseek-v41-layers.ts';
import { readExperts } from './sparse.ts';

export function loadDeepseekV41(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, { normEps: 1e-20 });
  const { params, text, hidden, dtype, normEps } = family;
  const hyper: HyperOptions = {
    hidden,
    dtype,
    normEps,
    streams: text.int('hc_mult', { max: 64 }, 4),
    iterations: text.int('hc_sinkhorn_iters', { max: 1000 }, 20),
    eps: text.number('hc_eps', { min: 0, max: 1 }, 1e-6),
  };
  const layers = readV41Layers(text, family.layerCount).map((layer, i): Deferred<DecoderLayer> => {
    const path = `model.layers.${i}`;
    const attention = declareCompressed(family, `${path}.self_attn`, layer);
    const inputNorm = declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps);
    const feedNorm = declareRmsNorm(params, `${path}.post_attention_layernorm`, hidden, normEps);
    const feed = declareFeed(family, `${path}.mlp`);
    const around = declareHyperConnection(params, `${path}.attn_hc`, hyper);
    const aroundFeed = declareHyperConnection(params, `${path}.ffn_hc`, hyper);
    return (loader) => {
      const [mixer, norm, fedNorm, mlp, connect, connectFeed] = [
        attention(loader),
        inputNorm(loader),
        feedNorm(loader),
        feed(loader),
        around(loader),
        aroundFeed(loader),
      ];
      return {
        makeCaches: () => mixer.makeCaches(),
        mix: (x, caches, pass) => connect(x, pass.rows, (h) => mixer.forward(norm(h, pass.s), caches, pass), pass.s),
        feed: (x, step) => connectFeed(x, step.rows, (h) => mlp.forward(fedNorm(h, step.s), step), step.s),
      };
    };
  });
  return buildDecoder(family, {
    layers,
    tied: text.bool('tie_word_embeddings', false),
    around: () => ({
      enter: (x, s) => spread(x, mx.shapeOf(x)[0]!, hyper, s),
      leave: (x, step) => collapse(x, step.rows, hyper, step.s),
    }),
    compaction: compactElements(COMPRESSED_CLASS, POOLED_ELEMENTS, (layer) => Number(layer.meta[RATIO_AT])),
  });
}

function declareCompressed({ params, text, hidden, dtype, normEps }: Family, path: string, layer: V41Layer): Deferred<Mixer> {
  const width = { max: 1 << 20 };
  const heads = text.int('num_attention_heads', width);
  const headDim = text.int('head_dim', width);
  const ropeDim = text.int('qk_rope_head_dim', { max: headDim });
  const rank = text.int('q_lora_rank', width);
  const groups = text.int('o_groups', { max: heads }, 8);
  if ((heads * headDim) % groups !== 0) throw text.error('o_groups', `a divisor of num_attention_heads x head_dim (${heads * headDim})`, groups);
  const groupRank = text.int('o_lora_rank', width);
  const indexDim = text.int('index_head_dim', width, 128);
  const { ratio, pools, picks, candidates } = layer;
  const options: CompressedOptions = {
    hidden,
    heads,
    headDim,
    ropeDim,
    groups,
    groupRank,
    ratio,
    normEps,
    dtype,
    window: text.int('sliding_window'),
    indexDim: pools && picks ? indexDim : 0,
  };
  const row = (name: string, out: number, from: number) => declareRows(params, { path: `${path}.${name}`, out }, from, false);
  const norm = (name: string, size: number) => params.declareNorm(`${path}.${name}.weight`, size);
  const queryDown = row('q_a_proj', rank, hidden);
  const queryNorm = norm('q_a_norm', rank);
  const queryUp = row('q_b_proj', heads * headDim, rank);
  const values = row('kv_proj', headDim, hidden);
  const valueNorm = norm('kv_norm', headDim);
  const outDown = params.declare(`${path}.o_a_proj.weight`, [groups, groupRank, (heads * headDim) / groups]);
  const outUp = row('o_b_proj', hidden, groups * groupRank);
  const sinks = params.declare(`${path}.sinks`, [heads]);
  const pool = pools
    ? {
        values: row('compressor.kv_proj', headDim, hidden),
        gates: row('compressor.gate_proj', headDim, hidden),
        norm: norm('compressor.kv_norm', headDim),
      }
    : null;
  const indexHeads = text.int('index_n_heads', width, 32);
  const pickerOptions: PickerOptions = {
    heads: indexHeads,
    headDim: indexDim,
    ropeDim,
    ratio,
    candidates,
    normEps,
    keeps: text.int('index_topk', {}, 512),
  };
  const picker = picks
    ? {
        query: row('indexer.q_b_proj', indexHeads * indexDim, rank),
        perHead: row('indexer.weights_proj', indexHeads, hidden),
        key: pools ? { matrix: row('indexer.k_proj', indexDim, headDim), norm: norm('indexer.k_norm', indexDim) } : null,
      }
    : null;
  const section = ratio > 0 ? text.section('rope_scaling') : null;
  const base = ratio > 0 ? text.number('compress_rope_theta', { min: 1 }, 160_000) : text.number('rope_theta', { min: 1 }, 10_000);
  const periods =
    section === null ? Array.from({ length: ropeDim / 2 }, (_, i) => base ** Math.fround((2 * i) / ropeDim)) : yarnPeriods(section, ropeDim, base);
  return (loader) =>
    mx.scope(() => {
      const s = loader.stream;
      const rope = (scale: number, sign: number) =>
        new Rope({ dims: ropeDim, base, scale, traditional: true, periods: periods.map((period) => sign * period) }, ropeDim, 'float32', loader, true);
      const forward = rope(1, 1);
      const matrix = (rows: DeclaredRows) => finish(rows.read(loader), loader);
      return new CompressedAttention(options, {
        queryDown: matrix(queryDown),
        queryNorm: loader.own(queryNorm(loader)),
        queryUp: matrix(queryUp),
        values: matrix(values),
        valueNorm: loader.own(valueNorm(loader)),
        outDown: loader.own(mx.contiguous(mx.swapaxes(outDown(loader), 1, 2, s), s)),
        outUp: matrix(outUp),
        sinks: loader.own(mx.astype(sinks(loader), 'float32', s)),
        ropes: { forward, inverse: rope(1, -1), pooled: pool === null ? null : rope(ratio, 1) },
        pool: pool === null ? null : { values: matrix(pool.values), gates: matrix(pool.gates), norm: loader.own(pool.norm(loader)) },
        picker:
          picker === null
            ? null
            : new Picker(pickerOptions, {
                query: matrix(picker.query),
                perHead: matrix(picker.perHead),
                key: picker.key === null ? null : { matrix: matrix(picker.key.matrix), norm: loader.own(picker.key.norm(loader)) },
                rope: forward,
              }),
      });
    });
}

function declareFeed({ params, text, hidden, dtype }: Family, path: string): Deferred<FeedForward> {
  const { experts, perToken } = readExperts(text, 'n_routed_experts');
  const inner = text.int('moe_intermediate_size', { max: 1 << 24 });
  const limit = text.number('swiglu_limit', { min: 0 }, 10);
  const activation: GateActivation = (gate, up, s) =>
    limit === 0 ? swiGlu(gate, up, s) : swiGlu(mx.minimum(gate, limit, s), mx.clip(up, -limit, limit, s), s);
  const shared = declareGatedMlp(params, `${path}.shared_experts`, hidden, inner, { activation });
  const places = { router: `${path}.gate`, experts: `${path}.experts.switch_mlp` };
  return declareMoe(
    params,
    { ...places, perToken, route: declareRoute(params, text, path, experts, perToken), shared },
    { hidden, inner, experts, dtype, activation },
  );
}

/** Scores by one of three functions; a stored bias changes who is picked, not by how much. */
function declareRoute(params: Parameters, text: Family['text'], path: string, experts: number, perToken: number): Deferred<Route> {
  const kind = text.word('scoring_func', ['sqrtsoftplus', 'sigmoid', 'softmax'], 'sqrtsoftplus');
  const heat = text.number('gate_temp', { min: 1e-6 }, 1);
  const normalise = text.bool('norm_topk_prob', true) && perToken > 1;
  const factor = text.number('routed_scaling_factor', {}, 1.5);
  const bias = params.declare(`${path}.gate.e_score_correction_bias`, [experts]);
  return (loader) => {
    const correction = loader.own(mx.astype(bias(loader), 'float32', loader.stream));
    return (raw, { rows, s }) => {
      const logits = mx.div(mx.astype(raw, 'float32', s), heat, s);
      const scores = kind === 'sigmoid' ? mx.sigmoid(logits, s) : kind === 'softmax' ? mx.softmax(logits, -1, true, s) : mx.sqrt(mx.softplus(logits, s), s);
      const picks = topPicks(mx.add(scores, correction, s), perToken, experts, rows, s);
      const weights = mx.takeAlongAxis(scores, picks, -1, s);
      const shares = normalise ? mx.div(weights, mx.add(mx.sum(weights, -1, true, s), 1e-20, s), s) : weights;
      return { picks, weights: mx.mul(shares, factor, s) };
    };
  };
}
