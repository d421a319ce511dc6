/**
 * Llama 4's text model: three layers of four see the chunk of the sequence they are in and turn their heads, the fourth sees
 * everything and knows no positions; some layers have experts, of which a token picks one.
 */
import { KvCache } from '../../cache/kv-cache.ts';
import * as mx from '../../mlx/ops.ts';
import type { Tensor } from '../../mlx/types.ts';
import { type AttentionOptions, declareAttention } from '../attention.ts';
import { declareBlock, declareRmsNorm, type FeedForward } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import { declareExperts, topPicks } from '../experts.ts';
import { buildDecoder, type Family, once, openFamily } from '../family.ts';
import { readHeads } from '../heads.ts';
import { applyMatrix, declareRows, finish } from '../linear.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred } from '../parameters.ts';
import { Rope } from '../rope.ts';
import { readRope } from '../rope-config.ts';
import type { Step } from '../step.ts';

const QK_NORM_EPS = 1e-6;

export function loadLlama4(folder: ModelFolder, options: LoadOptions): CausalModel {
  const family = openFamily(folder, options, { normEps: 1e-5 });
  const { params, text, hidden, dtype, normEps, layerCount } = family;
  const heads = readHeads(text, hidden);
  const chunk = text.int('attention_chunk_size');
  const bias = text.bool('attention_bias', false);
  const config = readRope(text, heads.headDim, { traditional: true, theta: 500_000 });
  const rope = once((loader) => new Rope(config, heads.headDim, dtype, loader));
  const common = { ...heads, hidden, dtype, bias: { input: bias, output: bias } };
  const near: AttentionOptions = {
    ...common,
    rope,
    qkNorm: text.bool('use_qk_norm', false) ? { eps: QK_NORM_EPS, kind: 'rotated' } : null,
    makeCache: (shape) => new KvCache({ ...shape, chunk }),
  };
  const factors = temperature(family);
  const far: AttentionOptions = { ...common, rope: null, ...(factors === null ? {} : { queryFactors: factors }) };
  const every = text.int('interleave_moe_layer_step', {}, 1);
  const inner = text.int('intermediate_size_mlp', { max: 1 << 24 });
  const layers = Array.from({ length: layerCount }, (_, i) => {
    const path = `model.layers.${i}`;
    const feed = `${path}.feed_forward`;
    return declareBlock({
      mixer: declareAttention(params, `${path}.self_attn`, (i + 1) % 4 === 0 ? far : near),
      inputNorm: declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps),
      feedNorm: declareRmsNorm(params, `${path}.post_attention_layernorm`, hidden, normEps),
      feed: i % every === every - 1 ? declareOneExpert(family, feed) : declareGatedMlp(params, feed, hidden, inner),
    });
  });
  return buildDecoder(family, { layers, tied: text.bool('tie_word_embeddings', false) });
}

/** Queries of layers without positions grow slowly with the position, so that attention does not flatten out. */
function temperature({ text }: Family): NonNullable<AttentionOptions['queryFactors']> | null {
  const given = text.raw('attn_temperature_tuning') ?? 4;
  if (given === false || given === 0) return null;
  const floor = text.number('floor_scale', { min: 1 }, 8192);
  const scale = text.number('attn_scale', {}, 0.1);
  return (offsets: readonly number[], { length }: Step): Tensor | null => {
    if (Math.max(...offsets) + length < floor) return null;
    const values = offsets.flatMap((offset) => Array.from({ length }, (_, t) => Math.log(Math.floor((offset + t + 1) / floor) + 1) * scale + 1));
    return mx.fromBytes(new Uint8Array(Float32Array.from(values).buffer), [offsets.length, 1, length, 1], 'float32');
  };
}

/** The router's score goes into the picked expert, not onto what it gives. */
function declareOneExpert({ params, text, hidden, dtype }: Family, path: string): Deferred<FeedForward> {
  const perToken = text.int('num_experts_per_tok', {}, 1);
  if (perToken !== 1) throw text.error('num_experts_per_tok', '1', perToken);
  const count = text.int('num_local_experts', { max: 1 << 16 });
  const inner = text.int('intermediate_size', { max: 1 << 24 });
  const router = declareRows(params, { path: `${path}.router`, out: count }, hidden, false);
  const experts = declareExperts(params, `${path}.experts`, { hidden, inner, experts: count, dtype });
  const shared = declareGatedMlp(params, `${path}.shared_expert`, hidden, inner);
  return (loader) => {
    const gate = mx.scope(() => finish(router.read(loader), loader));
    const [run, beside] = [experts(loader), shared(loader)];
    return {
      forward(x, step) {
        const { rows, s, device } = step;
        const logits = applyMatrix(gate, x, rows, device, s);
        const picks = topPicks(logits, 1, count, rows, s);
        const score = mx.astype(mx.sigmoid(mx.astype(mx.takeAlongAxis(logits, picks, -1, s), 'float32', s), s), dtype, s);
        const picked = mx.reshape(run(mx.mul(x, score, s), picks, rows, 1, s), [rows, hidden], s);
        return mx.add(picked, beside.forward(x, step), s);
      },
    };
  };
}
