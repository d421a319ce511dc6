/**
 * Options are checked before anything is started or computed. An error names the parameter, what was expected and
 * what came.
 */
import { cpus } from 'node:os';
import { validateSampling } from '../engine-thread/text/sampling.ts';
import { validateStopStrings } from '../engine-thread/text/stop-strings.ts';
import type { ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import { TidemarkError } from '../shared/errors.ts';
import { STATE_CODECS } from '../shared/state-codecs.ts';
import type { EngineOptions, PromptInput, RequestOptions } from './api.ts';
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

export function invalid(field: string, expected: string, received: unknown): TidemarkError {
  return new TidemarkError('INVALID_ARGUMENT', `${field} must be ${expected}, but is ${show(received)}. Change it and try again.`, {
    details: { field, expected, received: show(received) },
  });
}

function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 60 ? `${value.slice(0, 57)}...` : value);
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? `an array of ${value.length}` : 'an object';
  return typeof value === 'function' ? 'a function' : String(value);
}

/** A record with named fields: options and requests are nothing else. */
function record(field: string, value: unknown): asserts value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw invalid(field, 'an object', value);
}

export function integer(field: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < least || value > most) {
    throw invalid(field, `an integer from ${least} to ${most}`, value);
  }
  return value;
}

function oneOf<const T extends string>(field: string, value: unknown, allowed: readonly T[]): T {
  if (!allowed.includes(value as T)) throw invalid(field, `one of ${allowed.map((a) => `'${a}'`).join(', ')}`, value);
  return value as T;
}

function unknownKeys(what: string, given: object, known: readonly string[]): void {
  for (const key of Object.keys(given)) {
    if (!known.includes(key)) throw invalid(`${what}.${key}`, `absent (known options: ${known.join(', ')})`, (given as Record<string, unknown>)[key]);
  }
}

/**
 * One core is left to the app, the writer and the store worker: BLAS threads wait for each other by spinning, and a busy
 * core makes all of them late.
 */
function defaultThreads(): number {
  return Math.max(1, Math.min(8, cpus().length - 1));
}

const ENGINE_KEYS = [
  'model',
  'cache',
  'device',
  'compute',
  'prefillChunk',
  'maxContext',
  'maxNumSeqs',
  'deterministic',
  'maxQueue',
  'maxUnreadChunks',
  'onProgress',
  'threads',
  'memoryLimitBytes',
  'cacheLimitBytes',
  'wiredLimitBytes',
  'diagnoseOnSignal',
];
const CACHE_KEYS = ['dir', 'maxBytes', 'blockSize', 'persist', 'pendingMaxBytes', 'overflow', 'restoreDeadlineMs', 'salt', 'stateCodec'];

export function resolveEngineOptions(options: EngineOptions): { engine: ResolvedEngineOptions; cache: ResolvedCacheOptions | null; maxQueue: number } {
  record('options', options);
  unknownKeys('options', options, ENGINE_KEYS);
  if (typeof options.model !== 'string' || options.model === '') throw invalid('options.model', 'the path of an MLX model folder', options.model);
  const cache = options.cache === false ? null : (options.cache ?? {});
  if (cache !== null) {
    if (typeof cache !== 'object' || Array.isArray(cache)) throw invalid('options.cache', 'an object or false', cache);
    unknownKeys('options.cache', cache, CACHE_KEYS);
  }
  const blockSize = integer('options.cache.blockSize', cache?.blockSize ?? 256, 16, 4096);
  if (blockSize % 16 !== 0) throw invalid('options.cache.blockSize', 'a multiple of 16', blockSize);
  const deadline = cache?.restoreDeadlineMs ?? 10_000;
  if (deadline !== 'auto') integer('options.cache.restoreDeadlineMs', deadline, 1, 3_600_000);
  if (options.onProgress !== undefined && typeof options.onProgress !== 'function') throw invalid('options.onProgress', 'a function', options.onProgress);
  if (options.deterministic !== undefined && typeof options.deterministic !== 'boolean')
    throw invalid('options.deterministic', 'true or false', options.deterministic);
  const stateCodec = oneOf('options.cache.stateCodec', cache?.stateCodec ?? 'fp32', STATE_CODECS);
  // A restored state would be another one than the run that wrote it went on with.
  if (options.deterministic === true && stateCodec !== 'fp32') throw invalid('options.cache.stateCodec', "'fp32' with deterministic: true", stateCodec);
  const salt = cache?.salt ?? '';
  if (typeof salt !== 'string') throw invalid('options.cache.salt', 'a string', salt);
  const engine: ResolvedEngineOptions = {
    model: options.model,
    device: oneOf('options.device', options.device ?? 'auto', ['auto', 'cpu', 'gpu']),
    compute: options.compute === undefined ? null : oneOf('options.compute', options.compute, ['float32', 'model']),
    prefillChunk: integer('options.prefillChunk', options.prefillChunk ?? 512, 1, 65_536),
    maxContext: options.maxContext === undefined ? null : integer('options.maxContext', options.maxContext, 2, 16_777_216),
    maxNumSeqs: integer('options.maxNumSeqs', options.maxNumSeqs ?? 1, 1, 64),
    deterministic: options.deterministic ?? false,
    maxUnreadChunks: integer('options.maxUnreadChunks', options.maxUnreadChunks ?? 64, 1, 65_536),
    threads: integer('options.threads', options.threads ?? defaultThreads(), 1, 256),
    persist: cache === null ? 'off' : oneOf('options.cache.persist', cache.persist ?? 'boundary', ['boundary', 'finish', 'off']),
    blockSize,
    restoreDeadlineMs: deadline,
    salt,
    stateCodec,
    memory: {
      memory: bytesOrNull('options.memoryLimitBytes', options.memoryLimitBytes, MIB),
      cache: bytesOrNull('options.cacheLimitBytes', options.cacheLimitBytes, 0),
      wired: bytesOrNull('options.wiredLimitBytes', options.wiredLimitBytes, 0),
    },
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

function bytesOrNull(field: string, value: unknown, least: number): number | null {
  return value === undefined ? null : integer(field, value, least, Number.MAX_SAFE_INTEGER);
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

/** Checks everything about a request that does not need the model, sampling values included. */
export function checkRequest(request: RequestOptions): void {
  record('request', request);
  unknownKeys('request', request, REQUEST_KEYS);
  checkPrompt(request);
  validateSampling(request);
  if (request.maxTokens !== undefined) integer('request.maxTokens', request.maxTokens, 1, 16_777_216);
  validateStopStrings(request.stop);
  if (request.stopTokens !== undefined) checkIds('request.stopTokens', request.stopTokens);
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

/** For calls that take a prompt and nothing else; a whole request will do as well. */
export function checkInput(input: PromptInput): void {
  record('request', input);
  unknownKeys('request', input, REQUEST_KEYS);
  checkPrompt(input);
}

function checkPrompt(input: PromptInput): void {
  const given = (['prompt', 'messages', 'tokens'] as const).filter((key) => input[key] !== undefined);
  if (given.length !== 1)
    throw invalid('request', 'given exactly one of prompt, messages and tokens', given.length === 0 ? 'given none of them' : `given ${given.join(' and ')}`);
  if (input.prompt !== undefined && typeof input.prompt !== 'string') throw invalid('request.prompt', 'a string', input.prompt);
  if (input.prompt === '') throw empty('request.prompt', 'text');
  if (input.messages !== undefined) checkMessages(input.messages);
  if (input.tokens !== undefined) {
    checkIds('request.tokens', input.tokens);
    if (input.tokens.length === 0) throw empty('request.tokens', 'one token');
  }
  if (input.templateOptions !== undefined) record('request.templateOptions', input.templateOptions);
}

function checkMessages(messages: unknown): void {
  if (!Array.isArray(messages)) throw invalid('request.messages', 'an array of { role, content }', messages);
  if (messages.length === 0) throw empty('request.messages', 'one message');
  for (const [i, message] of messages.entries()) {
    const at = `request.messages[${i}]`;
    record(at, message);
    if (typeof message.role !== 'string') throw invalid(`${at}.role`, 'a string', message.role);
    if (typeof message.content !== 'string') throw invalid(`${at}.content`, 'a string', message.content);
  }
}

/** What an id may be at all; whether the model has it is known to the engine only. */
function checkIds(field: string, ids: unknown): void {
  if (!Array.isArray(ids) && (!ArrayBuffer.isView(ids) || ids instanceof DataView)) throw invalid(field, 'an array of token ids', ids);
  const list = ids as ArrayLike<unknown>;
  for (let i = 0; i < list.length; i++) integer(`${field}[${i}]`, list[i], 0, 0x7fff_ffff);
}

function empty(field: string, least: string): TidemarkError {
  return new TidemarkError('PROMPT_EMPTY', `${field} is empty. Give at least ${least}.`, { details: { field } });
}

/** A limit in milliseconds that an option gives, or its default. */
export function deadline(field: string, value: unknown, byDefault: number): number {
  return value === undefined ? byDefault : integer(field, value, 0, 2_147_483_647);
}
