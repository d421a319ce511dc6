/**
 * The loaded model as sequences use it: forward passes on the engine's stream, text in and out, and what identifies
 * its bits for the cache.
 *
 * Engine thread only. A forward pass runs in a scope: every array it makes is freed at its end except what the caches
 * keep, so that the next in-place update of a cache finds no other reference to it.
 */
import type { LoadProgress } from '../host/api.ts';
import type { LoadedModel, ResolvedEngineOptions, WireRequest } from '../shared/engine-protocol.ts';
import { TidemarkError } from '../shared/errors.ts';
import type { PassCompanion } from './boundary/recorder.ts';
import type { LayerCache } from './cache/layer-cache.ts';
import { cacheTensors } from './cache/registry.ts';
import { asyncEvaluate, evaluate, fromInts, toFloat32Array } from './mlx/ops.ts';
import { scope } from './mlx/scope.ts';
import type { Stream, Tensor } from './mlx/types.ts';

import { type CausalModel, loadModel, modelFingerprint, openModelFolder } from './models/index.ts';
import { ChatTemplate } from './text/chat-template.ts';
import { Tokenizer } from './text/tokenizer.ts';

export class EngineModel {
  readonly causal: CausalModel;
  readonly tokenizer: Tokenizer;
  readonly fingerprint: string;
  readonly endTokens: ReadonlySet<number>;
  readonly maxContext: number;
  readonly device: 'cpu' | 'gpu';
  readonly compute: 'float32' | 'model';
  /** True when some layer's state can't be cut by token. */
  readonly hasFixedState: boolean;
  /** True when some layer's state can. */
  readonly hasSliceableState: boolean;
  readonly stream: Stream;
  readonly #template: ChatTemplate;

  private constructor(causal: CausalModel, tokenizer: Tokenizer, template: ChatTemplate, fingerprint: string, parts: ModelParts) {
    this.causal = causal;
    this.tokenizer = tokenizer;
    this.fingerprint = fingerprint;
    this.stream = parts.stream;
    this.device = parts.device;
    this.compute = parts.compute;
    this.#template = template;
    this.endTokens = new Set(tokenizer.eosTokenIds(parts.config));
    const own = causal.info.maxContext;
    this.maxContext = Math.min(parts.maxContext ?? own, own);
    const caches = causal.makeCaches();
    this.hasFixedState = caches.some((cache) => !cache.sliceable);
    this.hasSliceableState = caches.some((cache) => cache.sliceable);
    for (const cache of caches) cache.release();
  }

  static load(
    options: ResolvedEngineOptions,
    stream: Stream,
    device: 'cpu' | 'gpu',
    onProgress: (progress: LoadProgress) => void,
    onWarning: (message: string) => void,
  ): EngineModel {
    // bf16 and quantized products never reach the BLAS on CPU: float32 is the fast type there.
    const compute = options.compute ?? (device === 'cpu' ? 'float32' : 'model');
    const { config } = openModelFolder(options.model);
    const tokenizer = Tokenizer.load(options.model);
    const template = ChatTemplate.load(options.model, tokenizer);
    const causal = loadModel(options.model, {
      stream,
      device,
      compute,
      onProgress: (bytes, totalBytes) => onProgress({ phase: 'weights', bytes, totalBytes }),
    });
    for (const warning of causal.warnings) onWarning(warning);
    const fingerprint = modelFingerprint(options.model);
    onProgress({ phase: 'ready', bytes: 0, totalBytes: 0 });
    return new EngineModel(causal, tokenizer, template, fingerprint, { stream, device, compute, config, maxContext: options.maxContext });
  }

  describe(): LoadedModel {
    const { info } = this.causal;
    return {
      type: info.modelType,
      layers: info.layers,
      vocabSize: info.vocabSize,
      maxContext: this.maxContext,
      fingerprint: this.fingerprint,
      device: this.device,
      compute: this.compute,
    };
  }

  makeCaches(): LayerCache[] {
    return this.causal.makeCaches();
  }

  /** `beside`: has its tensors evaluated with the pass, and may work while it is computed. */
  forward(tokens: readonly number[], caches: LayerCache[], logits: 'last' | 'none', beside: PassCompanion | null = null): Float32Array | null {
    return scope(() => {
      const out = this.#pass(tokens, [1, tokens.length], caches, logits, beside);
      return out === null ? null : toFloat32Array(out);
    });
  }

  /** One more token for each row of a batch; the float32 logits behind each, views of one array. */
  decode(tokens: readonly number[], caches: LayerCache[], beside: PassCompanion | null = null): Float32Array[] {
    return scope(() => {
      const all = toFloat32Array(this.#pass(tokens, [tokens.length, 1], caches, 'last', beside)!);
      const width = all.length / tokens.length;
      return tokens.map((_, row) => all.subarray(row * width, (row + 1) * width));
    });
  }

  #pass(tokens: readonly number[], shape: number[], caches: LayerCache[], logits: 'last' | 'none', beside: PassCompanion | null): Tensor | null {
    const out = this.causal.forward(fromInts(Int32Array.from(tokens), shape), caches, this.stream, logits);
    const wanted = [...(out === null ? [] : [out]), ...cacheTensors(caches), ...(beside?.built() ?? [])];
    if (beside !== null) {
      asyncEvaluate(wanted);
      beside.running();
    }
    evaluate(wanted);
    return out;
  }

  /** Token ids of a request's prompt. Throws PROMPT_EMPTY, INVALID_ARGUMENT (an id outside the vocabulary) or a template error. */
  encode(input: WireRequest['input']): Int32Array {
    const ids = this.#encode(input);
    if (ids.length === 0) throw new TidemarkError('PROMPT_EMPTY', 'The prompt has no tokens. Give at least one token of text.');
    const outside = ids.find((id) => id < 0 || id >= this.causal.info.vocabSize);
    if (outside !== undefined) {
      throw new TidemarkError(
        'INVALID_ARGUMENT',
        `Token id ${outside} is outside the model's vocabulary (0 to ${this.causal.info.vocabSize - 1}). Use ids of this model's tokenizer.`,
        {
          details: { field: 'tokens', expected: `0 to ${this.causal.info.vocabSize - 1}`, received: outside },
        },
      );
    }
    return ids;
  }

  release(): void {
    this.causal.release();
  }

  #encode(input: WireRequest['input']): Int32Array {
    if (input.tokens !== undefined) return input.tokens;
    if (input.prompt !== undefined) return Int32Array.from(this.tokenizer.encode(input.prompt));
    const text = this.#template.render(input.messages ?? [], input.templateOptions ?? {});
    return Int32Array.from(this.tokenizer.encode(text, { addSpecialTokens: false }));
  }
}

interface ModelParts {
  stream: Stream;
  device: 'cpu' | 'gpu';
  compute: 'float32' | 'model';
  config: Parameters<Tokenizer['eosTokenIds']>[0];
  maxContext: number | null;
}
