/**
 * Every error code, miss reason and drop reason of the library, in one place.
 *
 * An error's `code` is stable API; its message says what to do. Classes do not survive a thread crossing (structured
 * clone and Comlink keep name, message and stack only), so errors travel as `WireError` and are rebuilt on arrival.
 */

export const ERROR_CODES = [
  // platform and set-up
  'MLX_UNAVAILABLE',
  'PLATFORM_UNSUPPORTED',
  'NOT_MAIN_THREAD',
  'NATIVE_UNAVAILABLE',
  'VERSION_CONFLICT',
  // model folder
  'MODEL_NOT_FOUND',
  'MODEL_CONFIG_INVALID',
  'MODEL_TYPE_UNSUPPORTED',
  'MODEL_TENSOR_MISSING',
  'MODEL_TENSOR_SHAPE',
  'MODEL_FILE_TRUNCATED',
  'MODEL_FILE_INVALID',
  'MODEL_FILE_UNREADABLE',
  'MODEL_QUANTIZATION_UNSUPPORTED',
  'TOKENIZER_INVALID',
  'CHAT_TEMPLATE_MISSING',
  'CHAT_TEMPLATE_FAILED',
  // requests
  'INVALID_ARGUMENT',
  'PROMPT_EMPTY',
  'PROMPT_TOO_LONG',
  'QUEUE_FULL',
  'REQUEST_TIMEOUT',
  'store_cache_admission_stalled',
  // engine life
  'ENGINE_CLOSED',
  'ENGINE_DIED',
  'ENGINE_STUCK',
  'DEVICE_LOST',
  'MLX_ERROR',
  'STREAM_AFFINITY',
  'TENSOR_POISONED',
  'TENSOR_RELEASED',
  'LEASE_GONE',
  'MEMORY_LIMIT',
  // locks and threads
  'LOCK_OWNER_DIED',
  'LOCK_RANK',
  'LOCK_NOT_OWNER',
  'LOCK_TIMEOUT',
  'LOCK_ON_MAIN_THREAD',
  'THREAD_TABLE_FULL',
  'SESSION_CLOSED',
  // store
  'CACHE_DIR_UNUSABLE',
  'CACHE_READ_ONLY',
  'CACHE_FULL',
  'CACHE_IO',
  'CACHE_LOCKED',
  'LOCK_UNSUPPORTED',
  'INDEX_REBUILT',
  'FOREIGN_FILES',
  'STORE_WORKER_DIED',
  'WRITER_DIED',
  'STORE_CLOSED',
  'FORMAT_INVALID',
] as const;
export type ErrorCode = (typeof ERROR_CODES)[number];

/** Why a lookup reused less than it could (also the `miss` event's reason). */
export const MISS_REASONS = [
  'off', // the cache is disabled for this engine or request
  'absent', // nothing stored for this prefix
  'checksum', // bytes do not match their checksum
  'truncated', // file shorter or longer than its header says
  'version', // unknown format version
  'format', // header or metadata is not what this version writes
  'codec', // state stored at reduced precision cannot be decoded
  'fingerprint', // stored by another model, configuration or numerics class
  'gap', // a part in the middle of the chain is missing
  'evicted', // was stored, has been removed for space
  'io', // the file could not be read
  'lock', // a lock was not had within its limit
  'deadline', // the restore took longer than restoreDeadlineMs
  'cancelled',
  'worker', // the store worker is not running
  'failed', // restored bytes were refused by the engine
  'busy', // no restore slot or region free
] as const;
export type MissReason = (typeof MISS_REASONS)[number];

/** Why a captured boundary was not stored. */
export const DROP_REASONS = [
  'backpressure',
  'registry',
  'poisoned',
  'offset',
  'nonfinite',
  'cancelled',
  'off',
  'closed',
  'worker',
  'oversize',
  'lock',
  'empty',
  'capture',
  'invalid',
] as const;
export type DropReason = (typeof DROP_REASONS)[number];

export interface TidemarkErrorOptions {
  cause?: unknown;
  /** Facts a program may want: field, expected, received, path, errno, lock, thread, … Structured-cloneable. */
  details?: Record<string, unknown>;
}

/** The one error class of the library. Branch on `code`, show `message` to a person. */
export class TidemarkError extends Error {
  override readonly name: string = 'TidemarkError';
  readonly code: ErrorCode;
  readonly details: Record<string, unknown>;

  constructor(code: ErrorCode, message: string, options: TidemarkErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.details = options.details ?? {};
  }
}

/** An array was built on one thread's stream and evaluated on another thread. Its graph is unharmed: the owner can still evaluate it. */
export class StreamAffinityError extends TidemarkError {
  override readonly name = 'StreamAffinityError';
  constructor(message: string, options: TidemarkErrorOptions = {}) {
    super('STREAM_AFFINITY', message, options);
  }
}

/** The device takes no more work in this process: the engine ends, and the app is to restart. */
export function isDeviceLost(error: unknown): error is TidemarkError {
  return error instanceof TidemarkError && error.code === 'DEVICE_LOST';
}

/** What crosses threads instead of an Error. */
export interface WireError {
  code: ErrorCode | null;
  name: string;
  message: string;
  stack?: string;
  details: Record<string, unknown>;
}

/** Any thrown value as a structured-cloneable record; `code` is null for errors that are not ours. */
export function errorToWire(error: unknown): WireError {
  if (error instanceof TidemarkError) {
    const wire: WireError = { code: error.code, name: error.name, message: error.message, details: error.details };
    if (error.stack !== undefined) wire.stack = error.stack;
    return wire;
  }
  if (error instanceof Error) {
    const wire: WireError = { code: null, name: error.name, message: error.message, details: {} };
    if (error.stack !== undefined) wire.stack = error.stack;
    return wire;
  }
  return { code: null, name: 'Error', message: String(error), details: {} };
}

/** The inverse of `errorToWire`: a TidemarkError again, or a plain Error with the remote stack. */
export function errorFromWire(wire: WireError): Error {
  const error =
    wire.code === 'STREAM_AFFINITY'
      ? new StreamAffinityError(wire.message, { details: wire.details })
      : wire.code !== null
        ? new TidemarkError(wire.code, wire.message, { details: wire.details })
        : new Error(wire.message);
  if (wire.stack !== undefined) error.stack = wire.stack;
  return error;
}
