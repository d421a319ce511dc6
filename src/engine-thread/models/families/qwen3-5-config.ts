/** Configuration of the Qwen3.5 text architecture: gated delta net layers with a gated full-attention layer every few. */
import { isObject } from '../checks.ts';
import { type ModelFolder, type Quantization, readQuantization } from '../config.ts';
import { ConfigReader } from '../config-reader.ts';
import { type RopeConfig, readRope } from '../rope-config.ts';

export type LayerType = 'linear_attention' | 'full_attention';

export interface DeltaNetConfig {
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  readonly convKernel: number;
}

export interface AttentionConfig {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly bias: { readonly input: boolean; readonly output: boolean };
  readonly outputGate: boolean;
  readonly rope: RopeConfig;
}

export interface Qwen35Config {
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly vocabSize: number;
  readonly maxContext: number;
  readonly tiedEmbeddings: boolean;
  readonly layerTypes: readonly LayerType[];
  readonly attention: AttentionConfig;
  readonly deltaNet: DeltaNetConfig;
  readonly quantization: Quantization | null;
}

/**
 * Both layouts: parameters under `text_config` (as published, `model_type` qwen3_5) and flat.
 *
 * @throws {TidemarkError} MODEL_CONFIG_INVALID naming the field, MODEL_QUANTIZATION_UNSUPPORTED
 */
export function readQwen35Config(folder: ModelFolder): Qwen35Config {
  const { config, configPath } = folder;
  const top = new ConfigReader(config, configPath);
  const text = isObject(config.text_config) ? top.section('text_config')! : top;

  text.word('hidden_act', ['silu'], 'silu');

  const hiddenSize = text.int('hidden_size', { max: 1 << 20 });
  const heads = text.int('num_attention_heads', { max: 1 << 16 });
  const kvHeads = text.int('num_key_value_heads', { max: 1 << 16 }, heads);
  if (heads % kvHeads !== 0) throw text.error('num_key_value_heads', `a divisor of num_attention_heads (${heads})`, kvHeads);
  const headDim = text.int('head_dim', { max: 1 << 16 }, Math.floor(hiddenSize / heads));
  const bias = text.bool('attention_bias', false);
  const keyHeads = text.int('linear_num_key_heads', { max: 1 << 16 });
  const valueHeads = text.int('linear_num_value_heads', { max: 1 << 16 });
  if (valueHeads % keyHeads !== 0) throw text.error('linear_num_value_heads', `a multiple of linear_num_key_heads (${keyHeads})`, valueHeads);

  return {
    hiddenSize,
    intermediateSize: text.int('intermediate_size', { max: 1 << 24 }),
    vocabSize: text.int('vocab_size', { max: 1 << 24 }),
    maxContext: text.int('max_position_embeddings', {}, 131_072),
    tiedEmbeddings: text.bool('tie_word_embeddings', top.bool('tie_word_embeddings', false)),
    layerTypes: readLayerTypes(text),
    attention: {
      heads,
      kvHeads,
      headDim,
      bias: { input: bias, output: bias },
      outputGate: text.bool('attn_output_gate', true),
      rope: readRope(text, headDim, { theta: 100_000, partial: 0.25 }),
    },
    deltaNet: {
      keyHeads,
      valueHeads,
      keyDim: text.int('linear_key_head_dim', { max: 1 << 16 }),
      valueDim: text.int('linear_value_head_dim', { max: 1 << 16 }),
      convKernel: text.int('linear_conv_kernel_dim', { min: 2, max: 64 }, 4),
    },
    quantization: readQuantization(folder),
  };
}

/** `layer_types` says it layer by layer; without it every n-th layer has full attention. */
function readLayerTypes(text: ConfigReader): LayerType[] {
  const count = text.int('num_hidden_layers', { max: 10_000 });
  const listed = text.words<LayerType>('layer_types', ['linear_attention', 'full_attention'], count);
  if (listed !== null) return listed;
  const interval = text.int('full_attention_interval', {}, 4);
  return Array.from({ length: count }, (_, i) => ((i + 1) % interval === 0 ? 'full_attention' : 'linear_attention'));
}
