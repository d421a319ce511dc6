/**
 * What main and the engine thread say to each other. Requests go in through Comlink, answers come out through one
 * MessagePort ("delivery"), and everything either side must see at once lies in shared words (`RequestTable`).
 */
import type { MessagePort } from 'node:worker_threads';
import type { ChatMessage, Device, FinishReason, LoadProgress, Persist, SamplingOptions, Usage } from '../host/api.ts';
import type { ErrorCode, MissReason, WireError } from './errors.ts';
import type { ProcessShared } from './process-shared.ts';
import type { RequestRef } from './request-table.ts';
import type { SessionMemory } from './session/index.ts';
import type { StateCodec } from './state-codecs.ts';
import type { StoreMode } from './worker-init.ts';

/** Options after validation: every default filled in. */
export interface ResolvedEngineOptions {
  model: string;
  device: Device;
  /** null: float32 on CPU, the stored type on a GPU. */
  compute: 'float32' | 'model' | null;
  prefillChunk: number;
  maxContext: number | null;
  maxNumSeqs: number;
  deterministic: boolean;
  maxUnreadChunks: number;
  threads: number;
  persist: Persist;
  blockSize: number;
  restoreDeadlineMs: number | 'auto';
  salt: string;
  stateCodec: StateCodec;
  /** Bytes; null: as MLX has it, and for `wired` what the device recommends. */
  memory: { memory: number | null; cache: number | null; wired: number | null };
}

export interface WireRequest {
  requestId: string;
  requestNo: number;
  ref: RequestRef;
  input: { prompt?: string; messages?: readonly ChatMessage[]; tokens?: Int32Array; templateOptions?: Record<string, unknown> };
  sampling: SamplingOptions;
  maxTokens: number | null;
  stop: string[];
  stopTokens: number[];
  ignoreEos: boolean;
  persist: Persist;
  noRestore: boolean;
  /** 'prefill' computes and stores the prompt only. */
  mode: 'generate' | 'prefill';
  /** Used by `evaluate` alone. */
  probe?: ProbeOptions;
}

/**
 * Measurement options of `tidemark eval` and of the tests: they look at the very path that requests take.
 */
export interface ProbeOptions {
  /** Tokens per pass; null: the whole prompt in one pass. */
  chunk: number | null;
  /** Greedy tokens after the prompt. */
  greedy: number;
  /** Return every logit at the last prompt position and a digest of the caches there. */
  full: boolean;
  /** Restore at most this many tokens. */
  restoreLimit: number | null;
  /**
   * Clone the live caches at each captured boundary and continue each clone: those of the prompt to its end, those behind it
   * to the end of prompt and greedy tokens (`Probe.forks`).
   */
  forks: boolean;
}

export interface Probe {
  argmax: number;
  logsumexp: number;
  logitsHead: number[];
  greedy: number[];
  /** Gap between the two best logits at each greedy step. */
  gaps: number[];
  cachedTokens: number;
  missReason: MissReason | null;
  logits?: Float32Array;
  /** SHA-256 over every byte of the caches' state and its layout at the last prompt position. */
  stateDigest?: string;
  forks?: { tokenCount: number; logits: Float32Array; stateDigest: string }[];
}

export interface RequestTimings {
  queuedMs: number;
  restoreMs: number;
  prefillMs: number;
  firstTokenMs: number;
  totalMs: number;
}

/** Messages on the delivery port, engine → main. */
export type Delivery =
  | { kind: 'chunk'; requestNo: number; text: string; tokenIds: number[]; index: number }
  | {
      kind: 'end';
      requestNo: number;
      text: string;
      tokenIds: number[];
      index: number;
      finishReason: FinishReason;
      usage: Usage;
      missReason: MissReason | null;
      timings: RequestTimings;
      probe?: Probe;
    }
  | { kind: 'error'; requestNo: number; error: WireError }
  | { kind: 'progress'; requestNo: number; phase: 'restore' | 'prefill'; tokens: number; totalTokens: number }
  | { kind: 'miss'; requestNo: number; reason: MissReason; detail: string; cachedTokens: number; promptTokens: number }
  | { kind: 'warning'; code: string; message: string }
  /** The engine stores nothing from now on. */
  | { kind: 'degraded'; code: ErrorCode; message: string; details: Record<string, unknown> }
  /** The device is lost: every request was told so, and every later one is refused. */
  | { kind: 'lost'; error: WireError }
  | { kind: 'load'; progress: LoadProgress };

/** Messages on the delivery port, main → engine: nothing but a nudge; what changed is read from shared words. */
export type Nudge = { kind: 'wake' };

export interface LoadedModel {
  type: string;
  layers: number;
  vocabSize: number;
  maxContext: number;
  fingerprint: string;
  device: 'cpu' | 'gpu';
  compute: string;
}

export interface EngineInit {
  shared: ProcessShared;
  options: ResolvedEngineOptions;
  requests: SharedArrayBuffer;
  counters: SharedArrayBuffer;
  delivery: MessagePort;
  /** Absent when the cache is off. */
  store: EngineStoreInit | null;
}

export interface EngineStoreInit {
  memory: SessionMemory;
  cacheDir: string;
  mode: StoreMode;
  /** Takes `HubMail` (oversize buffers) to the keeper. */
  hubPort: MessagePort;
  blockSize: number;
  restoreDeadlineMs: number | 'auto';
  salt: string;
  stateCodec: StateCodec;
  /** From how many bytes on a part of a boundary is leased to its writer instead of being copied. Default 2 MiB, see EngineStoreClient. */
  leaseFromBytes?: number;
}

/** Methods that the engine thread exposes through Comlink. They return records, since errors lose their class on the way. */
export type Reply<T> = { ok: true; value: T } | { ok: false; error: WireError };

export interface EngineApi {
  load(): Promise<Reply<LoadedModel>>;
  submit(request: WireRequest): Promise<Reply<{ promptTokens: number }>>;
  countTokens(input: WireRequest['input']): Promise<Reply<number>>;
  /** Another session in the place of one that was lost. Running requests go on, and store in the new one. */
  renewStore(init: EngineStoreInit): Promise<Reply<null>>;
  /** Finishes nothing: running requests end as aborted, the session is closed, streams are drained. */
  shutdown(): Promise<Reply<null>>;
}
