/**
 * Dense decoders of Llama's shape: llama, mistral, qwen2 (biases of q, k and v), qwen3 (norms of q and k). Layers that
 * `layer_types` calls sliding keep a window.
 */
import type { KvShape } from '../../cache/kv-cache.ts';
import { RotatingKvCache } from '../../cache/rotating-cache.ts';
import { type AttentionOptions, declareAttention } from '../attention.ts';
import { declareBlock, declareRmsNorm, type FeedForward } from '../block.ts';
import type { ModelFolder } from '../config.ts';
import type { ConfigReader } from '../config-reader.ts';
import type { DecoderLayer } from '../decoder.ts';
import { buildDecoder, type Family, once, openFamily } from '../family.ts';
import { readHeads } from '../heads.ts';
import { declareGatedMlp } from '../mlp.ts';
import type { CausalModel, LoadOptions } from '../model.ts';
import type { Deferred } from '../parameters.ts';
import { Rope } from '../rope.ts';
import { readRope } from '../rope-config.ts';

type Load = (folder: ModelFolder, options: LoadOptions) => CausalModel;

interface Variant {
  readonly theta?: number;
  readonly maxContext?: number;
  readonly tied?: boolean;
  readonly attention: (family: Family) => Pick<AttentionOptions, 'bias' | 'qkNorm'>;
}

function dense({ theta = 10_000, tied = true, maxContext, attention }: Variant): Load {
  return (folder, options) => {
    const family = openFamily(folder, options, maxContext === undefined ? {} : { maxContext });
    const { params, text, hidden } = family;
    text.word('hidden_act', ['silu'], 'silu');
    const inner = text.int('intermediate_size', { max: 1 << 24 });
    const bias = text.bool('mlp_bias', false);
    const attend = ropedAttention(family, { theta, ...attention(family) });
    return buildDecoder(family, {
      layers: slidingLayers(text, family.layerCount).map((window, i) => {
        const feed = declareGatedMlp(params, `model.layers.${i}.mlp`, hidden, inner, { bias });
        return preNormLayer(family, i, attend(window), feed);
      }),
      tied: text.bool('tie_word_embeddings', tied),
    });
  };
}

/** Options of an attention layer with rotated heads as configured; with a window where one is given. */
export function ropedAttention(family: Family, { theta, ...rest }: { theta: number } & Partial<AttentionOptions>): (window: number | null) => AttentionOptions {
  const { text, hidden, dtype } = family;
  const heads = readHeads(text, hidden);
  const config = readRope(text, heads.headDim, { theta });
  const rope = once((loader) => new Rope(config, heads.headDim, dtype, loader));
  return (window) => {
    const rotating = window === null ? {} : { makeCache: (shape: KvShape) => new RotatingKvCache({ ...shape, window }) };
    return { ...heads, hidden, dtype, rope, ...rest, ...rotating };
  };
}

/** Norm, attention, norm, feed-forward, under the names that most checkpoints use. */
export function preNormLayer(family: Family, i: number, attention: AttentionOptions, feed: Deferred<FeedForward>): Deferred<DecoderLayer> {
  const { params, hidden, normEps } = family;
  const path = `model.layers.${i}`;
  return declareBlock({
    mixer: declareAttention(params, `${path}.self_attn`, attention),
    feed,
    inputNorm: declareRmsNorm(params, `${path}.input_layernorm`, hidden, normEps),
    feedNorm: declareRmsNorm(params, `${path}.post_attention_layernorm`, hidden, normEps),
  });
}

/** The window of each layer; null where it sees everything. A `sliding_window` alone says nothing. */
export function slidingLayers(text: ConfigReader, count: number): (number | null)[] {
  const listed = text.words('layer_types', ['full_attention', 'sliding_attention'], count);
  return Array.from({ length: count }, (_, i) => (listed?.[i] === 'sliding_attention' ? text.int('sliding_window') : null));
}

export const loadLlama: Load = dense({
  attention: ({ text }) => {
    const bias = text.bool('attention_bias', false);
    return { bias: { input: bias, output: bias } };
  },
});

export const loadQwen2: Load = dense({ theta: 1_000_000, maxContext: 32_768, attention: () => ({ bias: { input: true, output: false } }) });

export const loadQwen3: Load = dense({
  theta: 1_000_000,
  attention: ({ normEps, text }) => {
    const bias = text.bool('attention_bias', false);
    return { bias: { input: bias, output: bias }, qkNorm: { eps: normEps, kind: 'stored' } };
  },
});
