/**
 * The model's tokenizer: text to ids and back, special ids, and what each id stands for in bytes.
 *
 * The work is done by `@huggingface/tokenizers`. What is added here: checks with codes, the end-of-answer ids of all
 * three places that may name them, and the byte table that makes streaming exact for byte-level BPE.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import { TidemarkError } from '../../shared/errors.ts';
import { isObject, type Json, type JsonObject } from '../models/checks.ts';
import { readJsonObject } from '../models/json-file.ts';
import { byteLevelBytes, isByteLevel } from './byte-level.ts';

export interface EncodeOptions {
  /** Let the tokenizer add its own begin/end tokens. Off for text that a chat template laid out. Default true. */
  addSpecialTokens?: boolean;
}

export interface DecodeOptions {
  /** Leave special tokens (`<|im_end|>` and the like) out of the text. Default true. */
  skipSpecialTokens?: boolean;
}

export class Tokenizer {
  /** Contents of tokenizer_config.json, `{}` when there is none. */
  readonly config: JsonObject;
  /** Contents of generation_config.json, `{}` when there is none. */
  readonly generationConfig: JsonObject;
  readonly specialIds: ReadonlySet<number>;
  /** Bytes of each id when the tokenizer is byte-level; null: only whole sequences can be decoded. */
  readonly isByteLevel: boolean;
  readonly #inner: HfTokenizer;
  readonly #added: ReadonlyMap<number, string>;

  private constructor(inner: HfTokenizer, tokenizer: JsonObject, config: JsonObject, generationConfig: JsonObject) {
    this.#inner = inner;
    this.config = config;
    this.generationConfig = generationConfig;
    const added = new Map<number, string>();
    const special = new Set<number>();
    for (const [id, token] of inner.get_added_tokens_decoder()) {
      added.set(id, token.content);
      if (token.special) special.add(id);
    }
    this.#added = added;
    this.specialIds = special;
    this.isByteLevel = isByteLevel(tokenizer.decoder ?? null);
  }

  /**
   * Reads tokenizer.json and the two optional files beside it.
   *
   * @throws {TidemarkError} TOKENIZER_INVALID
   */
  static load(dir: string): Tokenizer {
    const path = join(dir, 'tokenizer.json');
    if (!existsSync(path)) {
      const slow = existsSync(join(dir, 'tokenizer.model'))
        ? ' The folder has only a tokenizer.model; convert it with a Python tool that writes tokenizer.json.'
        : '';
      throw new TidemarkError('TOKENIZER_INVALID', `${path} does not exist.${slow}`, { details: { path } });
    }
    const codes = { missing: null, invalid: 'TOKENIZER_INVALID' } as const;
    const tokenizer = readJsonObject(path, codes)!;
    const config = readJsonObject(join(dir, 'tokenizer_config.json'), codes) ?? {};
    const generationConfig = readJsonObject(join(dir, 'generation_config.json'), { missing: null, invalid: 'MODEL_CONFIG_INVALID' }) ?? {};
    let inner: HfTokenizer;
    try {
      inner = new HfTokenizer({ added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, ...tokenizer }, config);
    } catch (error) {
      throw new TidemarkError('TOKENIZER_INVALID', `${path} is not a tokenizer this library can use: ${(error as Error).message}`, {
        cause: error,
        details: { path },
      });
    }
    return new Tokenizer(inner, tokenizer, config, generationConfig);
  }

  encode(text: string, options: EncodeOptions = {}): number[] {
    if (text === '') return this.#bare(options);
    return this.#inner.encode(text, { add_special_tokens: options.addSpecialTokens ?? true }).ids;
  }

  /** The library refuses to split nothing; an empty text still gets its begin token where the tokenizer adds one. */
  #bare(options: EncodeOptions): number[] {
    if (options.addSpecialTokens === false) return [];
    return this.#inner.encode('', { add_special_tokens: true }).ids;
  }

  /** Text exactly as the ids say it: no clean-up of spaces, whatever the tokenizer's configuration asks for. */
  decode(ids: readonly number[], options: DecodeOptions = {}): string {
    const skip = options.skipSpecialTokens ?? true;
    const kept = ids.filter((id) => this.#inner.id_to_token(id) !== undefined && !(skip && this.specialIds.has(id)));
    if (kept.length === 0) return '';
    return this.#inner.decode(kept, { skip_special_tokens: skip, clean_up_tokenization_spaces: false });
  }

  idOf(token: string): number | undefined {
    return this.#inner.token_to_id(token);
  }

  tokenOf(id: number): string | undefined {
    return this.#inner.id_to_token(id);
  }

  /** Whether the id is a token added beside the vocabulary (special or not): its text is literal, not byte-encoded. */
  isAdded(id: number): boolean {
    return this.#added.has(id);
  }

  /** The bytes an id adds to the text; empty for ids without a token. Only for byte-level tokenizers. */
  bytesOf(id: number): Uint8Array {
    const added = this.#added.get(id);
    if (added !== undefined) return new TextEncoder().encode(added);
    const token = this.#inner.id_to_token(id);
    return token === undefined ? new Uint8Array(0) : byteLevelBytes(token);
  }

  /** The text of a special token named in tokenizer_config.json, e.g. 'bos_token'; null when it is not set. */
  specialText(name: string): string | null {
    const value = this.config[name];
    if (typeof value === 'string') return value;
    return isObject(value) && typeof value.content === 'string' ? value.content : null;
  }

  /**
   * Ids that end an answer: those of generation_config.json, else of the model's config.json, else tokenizer_config's
   * `eos_token`. The first place that names any is taken whole.
   */
  eosTokenIds(modelConfig: JsonObject): number[] {
    const text = modelConfig.text_config;
    const candidates = [this.generationConfig.eos_token_id, modelConfig.eos_token_id, isObject(text) ? text.eos_token_id : undefined];
    for (const value of candidates) {
      const ids = idList(value);
      if (ids.length > 0) return ids;
    }
    const eos = this.specialText('eos_token');
    const id = eos === null ? undefined : this.idOf(eos);
    return id === undefined ? [] : [id];
  }
}

function idList(value: Json | undefined): number[] {
  const list = Array.isArray(value) ? value : [value];
  return list.filter((id): id is number => typeof id === 'number' && Number.isInteger(id) && id >= 0);
}
