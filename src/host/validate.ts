/**
 * Options are checked before anything is started or computed. An error names the parameter, what was expected and
 * what came.
 */
import { cpus } from 'node:os';
import type { ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import { TidemarkError } from '../shared/errors.ts';
import type { EngineOptions, RequestOptions } from './api.ts';
import { defaultCacheDir } from './default-cache-dir.ts';

const MIB = 1024 * 1024;

export interface ResolvedCacheOptions {
  dir: string;
  /** null: the smaller of 20 GB and 10 % of what is free, computed when the folder is opened. */
  maxBytes: number | null;
  blockSize: number;
  pendingMaxBytes: number;
  overflow: 'write-through' | 'inline' | 'drop';
}

export function invalid(parameter: string, expected: string, received: unknown): TidemarkError {
  return new TidemarkError('INVALID_ARGUMENT', `${parameter} must be ${expected}, but is ${show(received)}. Change it and try again.`, {
    details: { parameter, expected, received: show(received) },
  });
}

function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 60 ? `${value.slice(0, 57)}...` : value);
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? `an array of ${value.length}` : 'an object';
  return String(value);
}

export function integer(parameter: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < least || value > most) {
    throw invalid(parameter, `an integer from ${least} to ${most}`, value);
  }
  return value;
}

function oneOf<const T extends string>(parameter: string, value: unknown, allowed: readonly T[]): T {
  if (!allowed.includes(value as T)) throw invalid(parameter, `one of ${allowed.map((a) => `'${a}'`).join(', ')}`, value);
  return value as T;
}

function unknownKeys(what: string, given: object, known: readonly string[]): void {
  for (const key of Object.keys(given)) {
    if (!known.includes(key)) throw invalid(`${what}.${key}`, `absent (known options: ${known.join(', ')})`, (given as Record<string, unknown>)[key]);
  }
}

const ENGINE_KEYS = ['model', 'cache', 'device', 'compute', 'prefillChunk', 'maxContext', 'maxNumSeqs', 'maxQueue', 'maxUnreadChunks', 'onProgress', 'threads'];
const CACHE_KEYS = ['dir', 'maxBytes', 'blockSize', 'persist', 'pendingMaxBytes', 'overflow', 'restoreDeadlineMs', 'salt'];

export function resolveEngineOptions(options: EngineOptions): { engine: ResolvedEngineOptions; cache: ResolvedCacheOptions | null; maxQueue: number } {
  if (typeof options !== 'object' || options === null) throw invalid('options', 'an object', options);
  unknownKeys('options', options, ENGINE_KEYS);
  if (typeof options.model !== 'string' || options.model === '') throw invalid('options.model', 'the path of an MLX model folder', options.model);
  const cache = options.cache === false ? null : (options.cache ?? {});
  if (cache !== null) {
    if (typeof cache !== 'object') throw invalid('options.cache', 'an object or false', cache);
    unknownKeys('options.cache', cache, CACHE_KEYS);
  }
  const blockSize = integer('options.cache.blockSize', cache?.blockSize ?? 256, 16, 4096);
  if (blockSize % 16 !== 0) throw invalid('options.cache.blockSize', 'a multiple of 16', blockSize);
  const deadline = cache?.restoreDeadlineMs ?? 10_000;
  if (deadline !== 'auto') integer('options.cache.restoreDeadlineMs', deadline, 1, 3_600_000);
  if (options.onProgress !== undefined && typeof options.onProgress !== 'function') throw invalid('options.onProgress', 'a function', options.onProgress);
  const salt = cache?.salt ?? '';
  if (typeof salt !== 'string') throw invalid('options.cache.salt', 'a string', salt);
  const engine: ResolvedEngineOptions = {
    model: options.model,
    device: oneOf('options.device', options.device ?? 'auto', ['auto', 'cpu', 'gpu']),
    compute: options.compute === undefined ? null : oneOf('options.compute', options.compute, ['float32', 'model']),
    prefillChunk: integer('options.prefillChunk', options.prefillChunk ?? 512, 1, 65_536),
    maxContext: options.maxContext === undefined ? null : integer('options.maxContext', options.maxContext, 2, 16_777_216),
    maxNumSeqs: integer('options.maxNumSeqs', options.maxNumSeqs ?? 1, 1, 64),
    maxUnreadChunks: integer('options.maxUnreadChunks', options.maxUnreadChunks ?? 64, 1, 65_536),
    threads: integer('options.threads', options.threads ?? Math.min(8, cpus().length), 1, 256),
    persist: cache === null ? 'off' : oneOf('options.cache.persist', cache.persist ?? 'boundary', ['boundary', 'finish', 'off']),
    blockSize,
    restoreDeadlineMs: deadline,
    salt,
  };
  const maxQueue = integer('options.maxQueue', options.maxQueue ?? 256, 1, 65_536);
  if (cache === null) return { engine, cache: null, maxQueue };
  if (cache.dir !== undefined && (typeof cache.dir !== 'string' || cache.dir === '')) throw invalid('options.cache.dir', 'the path of a folder', cache.dir);
  return {
    engine,
    cache: {
      dir: cache.dir ?? defaultCacheDir(),
      maxBytes: cache.maxBytes === undefined ? null : integer('options.cache.maxBytes', cache.maxBytes, MIB, Number.MAX_SAFE_INTEGER),
      blockSize,
      pendingMaxBytes: integer('options.cache.pendingMaxBytes', cache.pendingMaxBytes ?? 512 * MIB, MIB, 64 * 1024 * MIB),
      overflow: oneOf('options.cache.overflow', cache.overflow ?? 'write-through', ['write-through', 'inline', 'drop']),
    },
    maxQueue,
  };
}

const REQUEST_KEYS = [
  'prompt',
  'messages',
  'tokens',
  'templateOptions',
  'temperature',
  'topK',
  'topP',
  'minP',
  'repetitionPenalty',
  'repetitionContext',
  'seed',
  'maxTokens',
  'stop',
  'stopTokens',
  'ignoreEos',
  'signal',
  'timeoutMs',
  'persist',
  'noRestore',
  'requestId',
];

/** Checks everything about a request that does not need the model. Sampling values are checked by `checkSampling`. */
export function checkRequest(request: RequestOptions): void {
  if (typeof request !== 'object' || request === null) throw invalid('request', 'an object', request);
  unknownKeys('request', request, REQUEST_KEYS);
  checkInput(request);
  if (request.maxTokens !== undefined) integer('request.maxTokens', request.maxTokens, 1, 16_777_216);
  const stops = typeof request.stop === 'string' ? [request.stop] : (request.stop ?? []);
  if (!Array.isArray(stops) || stops.some((s) => typeof s !== 'string' || s === ''))
    throw invalid('request.stop', 'a string or strings, none of them empty', request.stop);
  for (const id of request.stopTokens ?? []) integer('request.stopTokens[]', id, 0, 0xffff_ffff);
  if (request.signal !== undefined && !(request.signal instanceof AbortSignal)) throw invalid('request.signal', 'an AbortSignal', request.signal);
  if (request.timeoutMs !== undefined) integer('request.timeoutMs', request.timeoutMs, 1, 2_147_483_647);
  if (request.persist !== undefined) oneOf('request.persist', request.persist, ['boundary', 'finish', 'off']);
  for (const flag of ['ignoreEos', 'noRestore'] as const) {
    if (request[flag] !== undefined && typeof request[flag] !== 'boolean') throw invalid(`request.${flag}`, 'true or false', request[flag]);
  }
  if (request.requestId !== undefined && (typeof request.requestId !== 'string' || request.requestId === '' || request.requestId.length > 1024)) {
    throw invalid('request.requestId', 'a string of 1 to 1024 characters', request.requestId);
  }
}

export function checkInput(input: RequestOptions): void {
  const given = (['prompt', 'messages', 'tokens'] as const).filter((key) => input[key] !== undefined);
  if (given.length !== 1)
    throw invalid('request', 'given exactly one of prompt, messages and tokens', given.length === 0 ? 'none of them' : given.join(' and '));
  if (input.prompt !== undefined && typeof input.prompt !== 'string') throw invalid('request.prompt', 'a string', input.prompt);
  if (input.messages !== undefined) {
    if (!Array.isArray(input.messages)) throw invalid('request.messages', 'an array of { role, content }', input.messages);
    if (input.messages.length === 0) throw new TidemarkError('PROMPT_EMPTY', 'request.messages is empty. Give at least one message.');
    for (const [i, message] of input.messages.entries()) {
      if (typeof message?.role !== 'string') throw invalid(`request.messages[${i}].role`, 'a string', message?.role);
      if (typeof message.content !== 'string') throw invalid(`request.messages[${i}].content`, 'a string', message.content);
    }
  }
  if (input.prompt === '') throw new TidemarkError('PROMPT_EMPTY', 'request.prompt is empty. Give at least one token of text.');
  if (input.tokens !== undefined) {
    if (!Array.isArray(input.tokens) && !ArrayBuffer.isView(input.tokens)) throw invalid('request.tokens', 'an array of token ids', input.tokens);
    if (input.tokens.length === 0) throw new TidemarkError('PROMPT_EMPTY', 'request.tokens is empty. Give at least one token.');
    for (const id of input.tokens) if (!Number.isInteger(id) || id < 0) throw invalid('request.tokens[]', 'non-negative integers', id);
  }
}
