/**
 * Options that several verbs have, and how they become engine and request options.
 */
import { resolve } from 'node:path';
import type { CacheOptions, EngineOptions, RequestOptions } from '../host/api.ts';
import { defaultCacheDir } from '../host/default-cache-dir.ts';
import { STATE_CODECS } from '../shared/state-codecs.ts';
import { UsageError } from './command-error.ts';
import type { OptionTable, Values } from './options.ts';

export const MODEL_OPTIONS = {
  model: { type: 'text', short: 'm', value: 'DIR', required: true, help: 'MLX model folder (config.json, *.safetensors, tokenizer.json)' },
  device: { type: 'choice', choices: ['auto', 'cpu', 'gpu'], help: 'where the model runs', defaultText: 'auto' },
  compute: {
    type: 'choice',
    choices: ['float32', 'model'],
    help: "arithmetic type: float32, or 'model' for the type of the weights",
    defaultText: 'float32 on CPU, model on GPU',
  },
  threads: { type: 'integer', value: 'N', min: 1, help: 'BLAS threads on CPU', defaultText: 'one less than the cores, 1 to 8' },
  'prefill-chunk': { type: 'integer', value: 'N', min: 1, help: 'tokens per prefill step', defaultText: '512' },
  'max-context': { type: 'integer', value: 'N', min: 1, help: 'longest prompt plus answer, in tokens', defaultText: "the model's limit" },
  'diagnose-on-signal': {
    type: 'choice',
    choices: ['SIGUSR2', 'SIGHUP', 'SIGQUIT'],
    help: 'on this signal, write to standard error what every thread does and waits for',
    defaultText: 'none',
  },
} as const satisfies OptionTable;

/** Where the cache lies; enough for the `cache` verbs, which need no engine. */
export const CACHE_DIR_OPTION = {
  cache: { type: 'text', value: 'DIR', help: 'cache folder', defaultText: "the platform's cache folder for tidemark" },
} as const satisfies OptionTable;

/** Narrows a `cache` verb to one model. */
export const MODEL_FILTER_OPTION = {
  model: { type: 'text', short: 'm', value: 'FINGERPRINT', help: "only this model's blocks, by its fingerprint or the start of it (`cache stat` shows them)" },
} as const satisfies OptionTable;

export const CACHE_OPTIONS = {
  ...CACHE_DIR_OPTION,
  'no-cache': { type: 'flag', help: 'keep everything in memory; no file or folder is made' },
  'cache-max': {
    type: 'bytes',
    value: 'SIZE',
    min: 0,
    help: 'limit for everything in the cache folder, such as 20GB',
    defaultText: 'the smaller of 20GB and 10 % of what is free',
  },
  'block-size': { type: 'integer', value: 'N', min: 16, max: 4096, help: 'tokens per block, a multiple of 16', defaultText: '256' },
  persist: {
    type: 'choice',
    choices: ['boundary', 'finish', 'off'],
    help: 'when blocks are written: at each boundary, at the end of the answer, or never',
    defaultText: 'boundary',
  },
  salt: { type: 'text', value: 'TEXT', help: 'only requests with the same salt share blocks' },
  'state-codec': {
    type: 'choice',
    choices: STATE_CODECS,
    help: 'how recurrent state is stored; any but fp32 takes less room and is not exact',
    defaultText: 'fp32',
  },
} as const satisfies OptionTable;

export const SAMPLING_OPTIONS = {
  temperature: { type: 'number', short: 't', value: 'X', help: '0 is greedy', defaultText: "the model's generation_config.json, else 0" },
  'top-k': { type: 'integer', value: 'N', help: 'keep the N most likely tokens', defaultText: "the model's, else off" },
  'top-p': { type: 'number', value: 'X', help: 'keep the most likely tokens that together reach probability X', defaultText: "the model's, else off" },
  'min-p': { type: 'number', value: 'X', help: 'drop tokens less likely than X times the most likely one', defaultText: 'off' },
  'repetition-penalty': { type: 'number', value: 'X', help: 'above 1 makes repeats less likely', defaultText: '1' },
  'repetition-context': { type: 'integer', value: 'N', help: 'how many recent tokens the penalty looks at', defaultText: '64' },
  seed: { type: 'integer', value: 'N', help: 'the same seed gives the same answer on the same machine and settings', defaultText: 'random' },
} as const satisfies OptionTable;

export const ANSWER_OPTIONS = {
  ...SAMPLING_OPTIONS,
  'max-tokens': { type: 'integer', short: 'n', value: 'N', min: 1, help: 'longest answer, in tokens', defaultText: '512' },
  stop: { type: 'list', value: 'TEXT', help: 'the answer ends before this text; may be given more than once' },
  'ignore-eos': { type: 'flag', help: "go on past the model's end tokens" },
  'timeout-ms': { type: 'integer', value: 'N', min: 1, help: 'limit for the whole request', defaultText: 'none' },
  'no-restore': { type: 'flag', help: 'do not look up the cache; what is computed is still stored' },
  stats: { type: 'flag', help: 'show token counts, cached tokens and times on standard error' },
} as const satisfies OptionTable;

type ModelValues = Values<typeof MODEL_OPTIONS>;
type CacheValues = Values<typeof CACHE_OPTIONS>;
type AnswerValues = Values<typeof ANSWER_OPTIONS>;

/** The folder that a `cache` verb works on. */
export function cacheDirOf(values: Values<typeof CACHE_DIR_OPTION>): string {
  return resolve(values.cache ?? defaultCacheDir());
}

/** Drops what was not given, so that the engine's defaults hold. */
function given<T extends Record<string, unknown>>(options: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never;
}

export function engineOptions(verb: string, values: ModelValues & CacheValues): EngineOptions {
  return { ...modelOptions(values), cache: cacheOptions(verb, values) };
}

export function modelOptions(values: ModelValues): EngineOptions {
  return {
    model: values.model,
    ...given({
      device: values.device,
      compute: values.compute,
      threads: values.threads,
      prefillChunk: values['prefill-chunk'],
      maxContext: values['max-context'],
      diagnoseOnSignal: values['diagnose-on-signal'],
    }),
  };
}

function cacheOptions(verb: string, values: CacheValues): CacheOptions | false {
  if (values['no-cache']) {
    if (values.cache !== undefined) throw new UsageError(verb, '--cache and --no-cache exclude each other');
    return false;
  }
  return given({
    dir: values.cache,
    maxBytes: values['cache-max'],
    blockSize: values['block-size'],
    persist: values.persist,
    salt: values.salt,
    stateCodec: values['state-codec'],
  });
}

/** Everything of a request but its prompt. */
export function answerOptions(values: AnswerValues): RequestOptions {
  return {
    ...given({
      temperature: values.temperature,
      topK: values['top-k'],
      topP: values['top-p'],
      minP: values['min-p'],
      repetitionPenalty: values['repetition-penalty'],
      repetitionContext: values['repetition-context'],
      seed: values.seed,
      maxTokens: values['max-tokens'],
      timeoutMs: values['timeout-ms'],
    }),
    ...(values.stop.length > 0 ? { stop: values.stop } : {}),
    ...(values['ignore-eos'] ? { ignoreEos: true } : {}),
    ...(values['no-restore'] ? { noRestore: true } : {}),
  };
}
