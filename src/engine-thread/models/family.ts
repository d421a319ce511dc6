/**
 * What a family's file starts from and ends with: the opened folder with the fields every configuration has, and the
 * decoder made of its layers. In between a family says what its layers are.
 */
import type { Compaction } from '../boundary/compaction.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype } from '../mlx/types.ts';
import { declareRmsNorm, type Norm } from './block.ts';
import { isObject } from './checks.ts';
import { type ModelFolder, readQuantization } from './config.ts';
import { ConfigReader } from './config-reader.ts';
import { Decoder, type DecoderLayer, type DecoderParts } from './decoder.ts';
import { declareEmbedding, declareHead, type Embedding } from './embedding.ts';
import type { CausalModel, LoadOptions } from './model.ts';
import { type Deferred, Loader, type NameMap, Parameters } from './parameters.ts';
import { readTensorIndex } from './tensor-index.ts';

export interface Family {
  readonly folder: ModelFolder;
  readonly options: LoadOptions;
  /** The whole file, and the part that describes the language model (the same where there is no `text_config`). */
  readonly top: ConfigReader;
  readonly text: ConfigReader;
  readonly params: Parameters;
  /** Of activations. */
  readonly dtype: Dtype;
  readonly hidden: number;
  readonly vocabSize: number;
  readonly layerCount: number;
  readonly normEps: number;
  readonly maxContext: number;
  readonly embedding: Deferred<Embedding>;
}

/** Checkpoints of multimodal models put the language model in several places; their other parts are not for text. */
export const textNames: NameMap = (stored) => {
  if (/(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|audio_tower)\./.test(stored)) {
    return { skip: 'they belong to the vision tower; this engine reads text only' };
  }
  if (/(^|\.)mtp\./.test(stored)) return { skip: 'they predict several tokens at once (mtp), which this engine does not use' };
  if (/\.rotary_emb\.inv_freq$/.test(stored)) return { skip: 'they are rotary frequencies, which the configuration gives' };
  const name = stored.replace(/^model\.language_model\./, 'model.').replace(/^language_model\./, '');
  return { name: /^(layers\.|embed_tokens\.|norm\.)/.test(name) ? `model.${name}` : name };
};

export interface FamilyDefaults {
  readonly names?: NameMap;
  readonly normEps?: number;
  readonly maxContext?: number;
  readonly normEpsField?: string;
  /** A tensor of the type that activations have. */
  readonly dtypeOf?: string;
  readonly embeddingPath?: string;
}

export function openFamily(folder: ModelFolder, options: LoadOptions, defaults: FamilyDefaults = {}): Family {
  const { config, configPath } = folder;
  const top = new ConfigReader(config, configPath);
  const text = isObject(config.text_config) ? top.section('text_config')! : top;
  const hidden = text.int('hidden_size', { max: 1 << 20 });
  const vocabSize = text.int('vocab_size', { max: 1 << 24 });
  const layerCount = text.int('num_hidden_layers', { max: 10_000 });
  const normEps = text.number(defaults.normEpsField ?? 'rms_norm_eps', { min: 0, max: 1 }, defaults.normEps ?? 1e-6);
  const maxContext = text.int('max_position_embeddings', {}, defaults.maxContext ?? 131_072);
  const params = new Parameters(folder.dir, readTensorIndex(folder.dir), readQuantization(folder), defaults.names ?? textNames);
  const dtype = options.compute === 'float32' ? 'float32' : params.floatDtype(defaults.dtypeOf ?? 'model.norm.weight');
  const embedding = declareEmbedding(params, defaults.embeddingPath ?? 'model.embed_tokens', vocabSize, hidden, dtype);
  return { folder, options, top, text, params, dtype, embedding, hidden, vocabSize, layerCount, normEps, maxContext };
}

export interface DecoderSpec {
  readonly layers: readonly Deferred<DecoderLayer>[];
  /** Whether the embedding serves as the head. */
  readonly tied: boolean;
  readonly headPath?: string;
  readonly norm?: Deferred<Norm>;
  /** How the family's append-only state is cut down to a block's rows when it is stored. */
  readonly compaction?: Compaction;
  readonly around?: Deferred<Pick<DecoderParts, 'enter' | 'leave' | 'cap'>>;
}

/** Declares what is left, then reads everything. Nothing stays allocated when that fails. */
export function buildDecoder(family: Family, spec: DecoderSpec): CausalModel {
  const { params, hidden, vocabSize, options, folder, dtype, maxContext, normEps, embedding } = family;
  const headPath = spec.headPath ?? 'lm_head';
  const norm = spec.norm ?? declareRmsNorm(params, 'model.norm', hidden, normEps);
  const head = spec.tied ? params.ignore(`${headPath}.`) : declareHead(params, headPath, vocabSize, hidden);
  const loader = new Loader(options, params.bytes);
  try {
    const table = embedding(loader);
    const parts: DecoderParts = {
      embedding: table,
      layers: spec.layers.map((layer) => layer(loader)),
      norm: norm(loader),
      head: head === null ? table.head : head(loader),
      ...spec.around?.(loader),
    };
    const facts = { modelType: folder.modelType, vocabSize, maxContext, hiddenSize: hidden, dtype, warnings: params.warnings(), compaction: spec.compaction };
    return new Decoder(facts, loader, parts);
  } catch (error) {
    loader.release();
    throw error;
  }
}

/** What several layers use together is made once. */
export function once<T>(make: Deferred<T>): Deferred<T> {
  let made: { value: T } | null = null;
  return (loader) => {
    made ??= { value: mx.scope(() => make(loader)) };
    return made.value;
  };
}
