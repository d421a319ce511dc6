/** Qwen3.5's text model: delta net layers with a gated full-attention layer every few, each followed by a gated MLP. */
import { ArraysCache } from '../cache/arrays-cache.ts';
import { KvCache } from '../cache/kv-cache.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import { type Attention, attentionMask, declareAttention, type Mask } from './attention.ts';
import type { ModelFolder } from './config.ts';
import { DeltaNet, type DeltaNetOptions, declareDeltaNet } from './delta-net.ts';
import { declareEmbedding, declareHead, type Embedding, type Head } from './embedding.ts';
import { declareGatedMlp, type GatedMlp } from './mlp.ts';
import type { CausalModel, LoadOptions, LogitsOf, ModelInfo } from './model.ts';
import { Loader, type NameMap, Parameters } from './parameters.ts';
import { type Qwen35Config, readQwen35Config } from './qwen3-5-config.ts';
import { Rope, type Rotate } from './rope.ts';
import type { Step } from './step.ts';
import { readTensorIndex } from './tensor-index.ts';

interface Layer {
  readonly inputNorm: Tensor;
  readonly mixer: Attention | DeltaNet;
  readonly mlpNorm: Tensor;
  readonly mlp: GatedMlp;
}

/** Published checkpoints put the language model in several places; other parts of a multimodal model are not for text. */
export const qwen35Names: NameMap = (stored) => {
  if (/^(vision_tower|model\.visual|visual)\./.test(stored)) return { skip: 'they belong to the vision tower; this engine reads text only' };
  if (/(^|\.)mtp\./.test(stored)) return { skip: 'they predict several tokens at once (mtp), which this engine does not use' };
  const name = stored.replace(/^model\.language_model\./, 'model.').replace(/^language_model\./, '');
  return { name: /^(layers\.|embed_tokens\.|norm\.)/.test(name) ? `model.${name}` : name };
};

/**
 * Checks everything, then reads the weights.
 *
 * @throws {TidemarkError} MODEL_CONFIG_INVALID, MODEL_TENSOR_MISSING, MODEL_TENSOR_SHAPE, MODEL_FILE_TRUNCATED, …
 */
export function loadQwen35(folder: ModelFolder, options: LoadOptions): CausalModel {
  const config = readQwen35Config(folder);
  const params = new Parameters(folder.dir, readTensorIndex(folder.dir), config.quantization, qwen35Names);
  // Converted checkpoints have the convolution as [channels, kernel, 1] and norms as they multiply; those not converted
  // have [channels, 1, kernel] and norms as offsets from 1.
  params.normsAreOffsets = params.entriesEndingIn('.conv1d.weight').some(({ shape }) => shape.length === 3 && shape[2] !== 1);

  const dtype =
    options.compute === 'float32'
      ? 'float32'
      : params.floatDtype(params.has('model.embed_tokens.scales') ? 'model.embed_tokens.scales' : 'model.embed_tokens.weight');
  const deltaNet: DeltaNetOptions = { ...config.deltaNet, hidden: config.hiddenSize, kernel: config.deltaNet.convKernel, normEps: config.normEps, dtype };
  const { hiddenSize: hidden, vocabSize } = config;
  const embedding = declareEmbedding(params, 'model.embed_tokens', vocabSize, hidden);
  const layers = config.layerTypes.map((type, i) => {
    const path = `model.layers.${i}`;
    const mixer =
      type === 'linear_attention'
        ? declareDeltaNet(params, `${path}.linear_attn`, deltaNet)
        : declareAttention(params, `${path}.self_attn`, { ...config.attention, hidden, qkNormEps: config.normEps });
    const inputNorm = params.declareNorm(`${path}.input_layernorm.weight`, hidden);
    const mlpNorm = params.declareNorm(`${path}.post_attention_layernorm.weight`, hidden);
    const mlp = declareGatedMlp(params, `${path}.mlp`, hidden, config.intermediateSize);
    return (loader: Loader): Layer => ({
      mixer: mixer(loader),
      inputNorm: mx.scope(() => loader.own(inputNorm(loader))),
      mlpNorm: mx.scope(() => loader.own(mlpNorm(loader))),
      mlp: mlp(loader),
    });
  });
  const norm = params.declareNorm('model.norm.weight', hidden);
  const head = config.tiedEmbeddings ? params.ignore('lm_head.') : declareHead(params, 'lm_head', vocabSize, hidden);

  const loader = new Loader(options, params.bytes);
  try {
    const table = embedding(loader);
    return new Qwen35Model(config, folder.modelType, dtype, params.warnings(), loader, {
      embedding: table,
      layers: layers.map((layer) => layer(loader)),
      norm: mx.scope(() => loader.own(norm(loader))),
      head: head === null ? table.head : head(loader),
      rope: mx.scope(() => new Rope(config.attention.rope, config.attention.headDim, dtype, loader)),
      deltaNet,
    });
  } catch (error) {
    loader.release();
    throw error;
  }
}

interface Parts {
  readonly embedding: Embedding;
  readonly layers: readonly Layer[];
  readonly norm: Tensor;
  readonly head: Head;
  readonly rope: Rope;
  readonly deltaNet: DeltaNetOptions;
}

class Qwen35Model implements CausalModel {
  readonly info: ModelInfo;
  readonly warnings: readonly string[];
  readonly #config: Qwen35Config;
  readonly #loader: Loader;
  readonly #parts: Parts;

  constructor(config: Qwen35Config, modelType: string, dtype: Dtype, warnings: readonly string[], loader: Loader, parts: Parts) {
    this.#config = config;
    this.#loader = loader;
    this.#parts = parts;
    this.warnings = warnings;
    this.info = {
      modelType,
      vocabSize: config.vocabSize,
      maxContext: config.maxContext,
      layers: config.layerTypes.length,
      hiddenSize: config.hiddenSize,
      dtype,
      parameterBytes: loader.residentBytes,
    };
  }

  makeCaches(): LayerCache[] {
    const { kvHeads: heads, headDim } = this.#config.attention;
    const kv = { heads, keyDim: headDim, valueDim: headDim, dtype: this.info.dtype };
    const arrays = DeltaNet.cacheSpecs(this.#parts.deltaNet);
    return this.#config.layerTypes.map((type) => (type === 'linear_attention' ? new ArraysCache(arrays) : new KvCache(kv)));
  }

  forward(tokens: Tensor, caches: readonly LayerCache[], s: Stream, logits: LogitsOf): Tensor | null {
    const [batch, length] = mx.shapeOf(tokens) as [number, number];
    const step: Step = { s, device: this.#loader.options.device, batch, length, rows: batch * length };
    return mx.scope(() => {
      const hidden = this.#layers(tokens, caches, step, logits);
      if (hidden === null) return null;
      const rows = logits === 'last' ? batch : step.rows;
      const normed = mx.rmsNorm(hidden, this.#parts.norm, this.#config.normEps, s);
      return mx.keep(mx.reshape(this.#parts.head(normed, rows, s), [batch, rows / batch, this.#config.vocabSize], s));
    });
  }

  /** Hidden vectors [rows, hidden] of the tokens whose logits are wanted. */
  #layers(tokens: Tensor, caches: readonly LayerCache[], step: Step, logits: LogitsOf): Tensor | null {
    const { s, batch, length } = step;
    const eps = this.#config.normEps;
    const shared = this.#shared(caches, step);
    let x = this.#parts.embedding.lookup(mx.reshape(tokens, [step.rows], s), s);
    let rows = step;
    for (const [i, layer] of this.#parts.layers.entries()) {
      const normed = mx.rmsNorm(x, layer.inputNorm, eps, s);
      const cache = caches[i]!;
      const mixed =
        layer.mixer instanceof DeltaNet
          ? layer.mixer.forward(normed, cache as ArraysCache, step)
          : layer.mixer.forward(normed, cache as KvCache, shared.rotate!, shared.mask, step);
      x = mx.add(x, mixed, s);
      if (i === this.#parts.layers.length - 1) {
        // The caches are complete: what follows is for the wanted tokens only.
        if (logits === 'none') return null;
        if (logits === 'last' && length > 1) {
          x = lastTokens(x, batch, length, this.#config.hiddenSize, s);
          rows = { ...step, length: 1, rows: batch };
        }
      }
      x = mx.add(x, layer.mlp.forward(mx.rmsNorm(x, layer.mlpNorm, eps, s), rows), s);
    }
    return x;
  }

  /** What every attention layer of the step uses: they all hold the same tokens. */
  #shared(caches: readonly LayerCache[], step: Step): { rotate: Rotate | null; mask: Mask } {
    const kv = caches.find((cache) => cache instanceof KvCache);
    if (kv === undefined) return { rotate: null, mask: null };
    return { rotate: this.#parts.rope.prepare(kv.offsets, step), mask: attentionMask(kv, step) };
  }

  release(): void {
    this.#loader.release();
  }
}

function lastTokens(x: Tensor, batch: number, length: number, width: number, s: Stream): Tensor {
  if (batch === 1) return mx.slice(x, [length - 1, 0], [length, width], s);
  const perRow = mx.reshape(x, [batch, length, width], s);
  return mx.reshape(mx.slice(perRow, [0, length - 1, 0], [batch, length, width], s), [batch, width], s);
}
