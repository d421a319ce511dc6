/**
 * The public types of `tidemark`. Names may grow, not shrink.
 *
 * Units: token counts are integers, bytes are bytes, times are milliseconds unless a name says otherwise.
 */
import type { ErrorCode, MissReason } from '../shared/errors.ts';
import type { StateCodec } from '../shared/state-codecs.ts';

export type Device = 'auto' | 'cpu' | 'gpu';
export type { StateCodec };
export type Persist = 'boundary' | 'finish' | 'off';

export interface CacheOptions {
  /** Folder of the cache. Default: the platform's cache folder for tidemark. */
  dir?: string;
  /** Limit for everything under `dir`, in bytes. Default: the smaller of 20 GB and 10 % of what is free. */
  maxBytes?: number;
  /** Tokens per block: 16 to 4096, a multiple of 16. Default 256. Prefixes are stored and found at this granularity, plus at prompt ends. */
  blockSize?: number;
  /** When blocks are published: at each boundary (default), when the request ends, or never. */
  persist?: Persist;
  /** Bytes that may wait for the disk. Default 512 MiB. */
  pendingMaxBytes?: number;
  /** What `save` does when the limit or the queue is full for longer than its wait. Default 'write-through'. */
  overflow?: 'write-through' | 'inline' | 'drop';
  /** Longest time a restore may take before the request is computed instead; 'auto': the larger of 1 s and twice the expected recomputation. Default 10,000. */
  restoreDeadlineMs?: number | 'auto';
  /** Separates tenants: only requests with the same salt share blocks. */
  salt?: string;
  /**
   * How the float32 recurrent state of hybrid models is stored: 'fp32' (default) as it is, 'bf16' in half the bytes, 'int8'
   * and 'rotated-int8' in about a quarter, 'rotated-int16' in half with far less loss than 'bf16'. With any but 'fp32' a
   * restored run is close to the run that wrote the state, not equal to it.
   */
  stateCodec?: StateCodec;
}

export interface EngineOptions {
  /** Path of an MLX model folder (config.json, *.safetensors, tokenizer.json). */
  model: string;
  /** `false` keeps everything in memory and makes no file or folder. */
  cache?: CacheOptions | false;
  device?: Device;
  /** Arithmetic type: 'float32' or the type the weights are stored in ('model'). Default: 'float32' on CPU, 'model' on GPU. */
  compute?: 'float32' | 'model';
  /** Tokens per prefill step. Default 512. */
  prefillChunk?: number;
  /** Longest prompt plus answer in tokens. Default: the model's own limit. */
  maxContext?: number;
  /** Sequences that decode together. Default 1. */
  maxNumSeqs?: number;
  /**
   * Equal requests get equal logits, bit for bit, on the same machine and settings: prompts are cut on a fixed grid of tokens,
   * each sequence is decoded by itself, and only whole blocks of prompts are stored. Default false: answers that decode together
   * differ from those alone by rounding.
   */
  deterministic?: boolean;
  /** Requests that may wait. Default 256. */
  maxQueue?: number;
  /** Chunks an answer may be ahead of its reader before its sequence pauses. Default 64. */
  maxUnreadChunks?: number;
  onProgress?: (progress: LoadProgress) => void;
  /** BLAS threads on CPU. Default: one less than the number of cores, from 1 to 8. */
  threads?: number;
  /** Memory that MLX may use; beyond it allocations wait for work to end, and fail when the system has no more. For the whole process. Default: MLX's own. */
  memoryLimitBytes?: number;
  /** Freed memory that MLX keeps for reuse. For the whole process. Default: MLX's own. */
  cacheLimitBytes?: number;
  /** Memory that a Mac keeps resident, 0 for none. For the whole process. Default: what Metal recommends as working set. No effect elsewhere, or before macOS 15. */
  wiredLimitBytes?: number;
  /**
   * On this signal the text of `diagnose()` is written to standard error, or appended to `file`. Default: no handler. It is
   * removed by `close()`; engines of one process share one handler. SIGUSR1 (Node's inspector) is refused: take 'SIGUSR2'. The
   * dump comes when the main thread turns its event loop; while that thread is blocked, it waits.
   */
  diagnoseOnSignal?: DiagnoseOnSignal;
}

/** A signal's name, such as 'SIGUSR2', or that and a file. */
export type DiagnoseOnSignal = string | { signal: string; file?: string };

export interface LoadProgress {
  phase: 'weights' | 'tokenizer' | 'store' | 'ready';
  bytes: number;
  totalBytes: number;
}

export interface ChatMessage {
  role: string;
  content: string;
  [field: string]: unknown;
}

export interface SamplingOptions {
  /** 0 is greedy. Default: the model's generation_config, else 0. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  /** Above 1 makes repeats less likely. Default 1. */
  repetitionPenalty?: number;
  /** How many recent tokens the penalty looks at. Default 64. */
  repetitionContext?: number;
  /** Integer; the same seed gives the same answer on the same machine and settings. Default: random. */
  seed?: number;
}

export interface PromptInput {
  /** Plain text, tokenized as it is. */
  prompt?: string;
  /** A conversation, laid out by the model's chat template. */
  messages?: readonly ChatMessage[];
  /** Token ids. Exactly one of `prompt`, `messages` and `tokens` is given. */
  tokens?: readonly number[] | Int32Array | Uint32Array;
  /** Extra variables for the chat template. */
  templateOptions?: Record<string, unknown>;
}

export interface RequestOptions extends PromptInput, SamplingOptions {
  /** Default 512, cut to what the context leaves. */
  maxTokens?: number;
  /** The answer ends before the first of these. */
  stop?: string | readonly string[];
  /** Additional end tokens. */
  stopTokens?: readonly number[];
  /** Ignore the model's own end tokens. */
  ignoreEos?: boolean;
  signal?: AbortSignal;
  /** Whole-request limit; passes → REQUEST_TIMEOUT. */
  timeoutMs?: number;
  persist?: Persist;
  /** Do not look up the cache for this request. */
  noRestore?: boolean;
  requestId?: string;
}

export interface Usage {
  promptTokens: number;
  /** Prompt tokens that were not computed again. */
  cachedTokens: number;
  completionTokens: number;
}

export type FinishReason = 'stop' | 'length' | 'abort' | 'error';

export interface Chunk {
  text: string;
  tokenIds: number[];
  index: number;
  /** On the last chunk only. */
  finishReason?: FinishReason;
  usage?: Usage;
  /** Why less was reused than could have been; null when everything that could be was. */
  missReason?: MissReason | null;
}

export interface Completion {
  requestId: string;
  text: string;
  tokenIds: number[];
  finishReason: FinishReason;
  usage: Usage;
  missReason: MissReason | null;
  timings: { queuedMs: number; restoreMs: number; prefillMs: number; firstTokenMs: number; totalMs: number };
}

/** A running answer: iterate for chunks; `return()` (leaving the loop) aborts it. */
export interface Generation extends AsyncIterableIterator<Chunk> {
  readonly requestId: string;
  /** Settles when the answer has ended; rejects as the iteration does. Needs no iteration: until one begins, it reads on by itself. */
  readonly result: Promise<Completion>;
}

export interface EngineEvents {
  durable: { requestId: string; tokenCount: number; block: string };
  miss: { requestId: string; reason: MissReason; detail: string; cachedTokens: number; promptTokens: number };
  degraded: { code: ErrorCode; message: string; details: Record<string, unknown> };
  recovered: { code: ErrorCode; message: string };
  stall: { thread: string; sinceMs: number; diagnosis: string };
  warning: { code: string; message: string };
  progress: { requestId: string; phase: 'restore' | 'prefill'; tokens: number; totalTokens: number };
}

export interface Health {
  status: 'ok' | 'degraded' | 'stalled' | 'dead' | 'closed';
  /** Milliseconds since each thread last showed life. */
  heartbeatAgeMs: Record<string, number>;
  persistence: 'on' | 'off' | 'read-only' | 'degraded';
}

export interface EngineStats {
  requests: { queued: number; running: number; finished: number; aborted: number; failed: number };
  tokens: { prompt: number; cached: number; prefilled: number; decoded: number };
  /** Forward passes of the model. One decode pass gives every sequence of the batch a token. */
  passes: { prefill: number; decode: number };
  boundaries: {
    captured: number;
    coalesced: number;
    written: number;
    durable: number;
    superseded: number;
    evicted: number;
    dropped: Record<string, number>;
    failed: number;
    pending: number;
  };
  store: {
    pendingBytes: number;
    peakPendingBytes: number;
    backpressureMs: number;
    bytesWritten: number;
    /** State tensors stored as float32 because `stateCodec` does not fit their width. */
    codecFallbacks: number;
    bytesRestored: number;
    hits: number;
    misses: Record<string, number>;
  };
  /** `unreleasedBytes`: freed within the last 10 s and still charged by the system, an estimate. */
  memory: { activeBytes: number; peakBytes: number; cacheBytes: number; unreleasedBytes: number };
  /**
   * `foreignOps`: operations bound to another stream than the engine's, always 0. `clearsSkipped`: the lock was not had in time.
   * `clearWaitMs`: how long clears have waited for it. `leases`: parts of boundaries that another thread copied out of MLX's buffers.
   */
  streams: { foreignOps: number; clears: number; clearsSkipped: number; clearWaitMs: number; leases: number };
}

export interface CloseOptions {
  /** How long to wait for accepted bytes to reach the disk. Default 60,000. */
  deadlineMs?: number;
}

export interface CloseReport {
  /** Boundaries that were made durable during close and in all. */
  durable: number;
  /** Accepted boundaries that did not reach the disk in time. */
  lost: number;
}

export interface Engine extends AsyncDisposable {
  readonly model: { type: string; layers: number; vocabSize: number; maxContext: number; fingerprint: string };
  readonly cacheDir: string | null;
  generate(request: RequestOptions): Generation;
  complete(request: RequestOptions): Promise<Completion>;
  /** Computes and stores the prompt without answering. */
  prefill(request: RequestOptions): Promise<{ requestId: string; usage: Usage; missReason: MissReason | null }>;
  countTokens(input: PromptInput): Promise<number>;
  stats(): EngineStats;
  health(): Health;
  /** What every thread does and waits for, and who holds which lock. Takes no lock; works while every other thread is stuck. */
  diagnose(): Diagnosis;
  on<E extends keyof EngineEvents>(event: E, listener: (payload: EngineEvents[E]) => void): this;
  off<E extends keyof EngineEvents>(event: E, listener: (payload: EngineEvents[E]) => void): this;
  /** Resolves when every boundary accepted so far is durable or has failed. */
  flush(options?: { deadlineMs?: number }): Promise<void>;
  close(options?: CloseOptions): Promise<CloseReport>;
}

export interface Diagnosis {
  threads: { name: string; kind: string; alive: boolean; activity: string; detail: string; sinceMs: number; overdueMs: number }[];
  locks: { name: string; held: boolean; owner: string | null; site: string; sinceMs: number; waiters: number; longestHoldMs: number; longestWaitMs: number }[];
  cycles: string[];
  text: string;
}
