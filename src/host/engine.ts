/**
 * The engine's handle on the app's main thread. It never takes a lock and never blocks: it writes words, posts
 * messages, and turns what comes back into events, iterators and promises.
 */
import { EventEmitter } from 'node:events';
import { EngineCounters } from '../shared/engine-counters.ts';
import type { Delivery, LoadedModel, Probe, ProbeOptions, ResolvedEngineOptions, WireRequest } from '../shared/engine-protocol.ts';
import { errorFromWire, TidemarkError } from '../shared/errors.ts';
import { type RequestRef, RequestTable } from '../shared/request-table.ts';
import { AbortSignals } from './abort-signals.ts';
import type {
  CloseOptions,
  CloseReport,
  Completion,
  Diagnosis,
  Engine,
  EngineEvents,
  EngineStats,
  Generation,
  Health,
  PromptInput,
  RequestOptions,
  SamplingOptions,
  Usage,
} from './api.ts';
import type { EngineLink } from './engine-link.ts';
import type { EngineStore } from './engine-store.ts';
import { GenerationStream } from './generation.ts';
import { checkInput, checkRequest, deadline } from './validate.ts';

interface Pending {
  ref: RequestRef;
  requestId: string;
  stream: GenerationStream;
  /** Undoes the listeners and timers of this request. */
  disarm: () => void;
  /** Set when the caller was already told; the engine's own end then only frees the slot. */
  settled: boolean;
  probe: ((probe: Probe) => void) | null;
}

export interface EngineHostParts {
  options: ResolvedEngineOptions;
  maxQueue: number;
  requests: SharedArrayBuffer;
  counters: SharedArrayBuffer;
  store: EngineStore | null;
  diagnose: () => Diagnosis;
  heartbeats: () => Record<string, number>;
  /** Names of threads that were given up, for the end of the process. */
  stuck: Set<string>;
  /** Called once, when the engine is closed. */
  whenClosed: () => void;
}

/** How the CLI and the tests reach `evaluate` without widening the public type. */
export const EVALUATE = Symbol('tidemark.evaluate');

export class EngineHost extends EventEmitter implements Engine {
  readonly cacheDir: string | null;
  readonly #parts: EngineHostParts;
  readonly #requests: RequestTable;
  readonly #counters: EngineCounters;
  readonly #pending = new Map<number, Pending>();
  readonly #requestIds = new Map<number, string>();
  readonly #signals = new AbortSignals((requestNo, signal) => this.#abort(requestNo, { reason: signal.reason }));
  #link!: EngineLink;
  #model!: LoadedModel;
  #nextRequestNo = 1;
  #lost: TidemarkError | null = null;
  #closing: Promise<CloseReport> | null = null;
  #closed = false;
  #onLoad: ((message: Extract<Delivery, { kind: 'load' }>) => void) | null = null;
  /** Events of the time before the app could listen, in order; null once it can. */
  #early: (() => void)[] | null = [];

  constructor(parts: EngineHostParts) {
    super();
    this.#parts = parts;
    this.#requests = new RequestTable(parts.requests);
    this.#counters = new EngineCounters(parts.counters);
    this.cacheDir = parts.store?.cacheDir ?? null;
    parts.store?.bind((requestNo) => this.#requestIds.get(requestNo) ?? '', this.#emit);
  }

  /** Part of construction: the link needs `receive` and `died`, and the host needs the link. */
  async start(link: EngineLink, onLoad: (message: Extract<Delivery, { kind: 'load' }>) => void): Promise<void> {
    this.#link = link;
    this.#onLoad = onLoad;
    this.#parts.store?.onRenewal((init) => link.renewStore(init));
    this.#model = await link.call((api) => api.load());
    this.#onLoad = null;
  }

  /** The app has the engine: what happened before is told now, everything else as it comes. */
  announce(): void {
    const early = this.#early ?? [];
    this.#early = null;
    for (const tell of early) tell();
  }

  get model(): Engine['model'] {
    const { type, layers, vocabSize, maxContext, fingerprint } = this.#model;
    return { type, layers, vocabSize, maxContext, fingerprint };
  }

  generate(request: RequestOptions): Generation {
    return this.#submit(request, 'generate', false);
  }

  complete(request: RequestOptions): Promise<Completion> {
    try {
      return this.#submit(request, 'generate', true).result;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async prefill(request: RequestOptions): Promise<{ requestId: string; usage: Usage; missReason: Completion['missReason'] }> {
    const { requestId, usage, missReason } = await this.#submit(request, 'prefill', true).result;
    return { requestId, usage, missReason };
  }

  async countTokens(input: PromptInput): Promise<number> {
    this.#assertOpen();
    checkInput(input);
    return this.#link.call((api) => api.countTokens(wireInput(input)));
  }

  /** Measurement entry of `tidemark eval` and the tests; see `evaluateTokens`. */
  async [EVALUATE](tokens: readonly number[], probe: ProbeOptions): Promise<Probe> {
    let found: Probe | null = null;
    const request: RequestOptions = { tokens, temperature: 0, repetitionPenalty: 1, maxTokens: Math.max(1, probe.greedy), ignoreEos: true };
    await this.#submit(request, 'generate', true, probe, (p) => {
      found = p;
    }).result;
    if (found === null) throw new TidemarkError('MLX_ERROR', 'The engine ended the evaluation without a result. Run it again; if it repeats, report it.');
    return found;
  }

  stats(): EngineStats {
    const states = this.#requests.count();
    const c = this.#counters;
    const store = this.#parts.store?.stats();
    return {
      requests: {
        queued: states.queued,
        running: states.restoring + states.prefill + states.decode,
        finished: c.get('finished'),
        aborted: c.get('aborted'),
        failed: c.get('failed'),
      },
      tokens: { prompt: c.get('promptTokens'), cached: c.get('cachedTokens'), prefilled: c.get('prefilledTokens'), decoded: c.get('decodedTokens') },
      passes: { prefill: c.get('prefillPasses'), decode: c.get('decodePasses') },
      boundaries: store?.boundaries ?? { captured: 0, coalesced: 0, written: 0, durable: 0, superseded: 0, evicted: 0, dropped: {}, failed: 0, pending: 0 },
      store: {
        pendingBytes: store?.pendingBytes ?? 0,
        peakPendingBytes: store?.peakPendingBytes ?? 0,
        backpressureMs: store?.backpressureMs ?? 0,
        bytesWritten: store?.bytesWritten ?? 0,
        codecFallbacks: store?.codecFallbacks ?? 0,
        bytesRestored: c.get('bytesRestored'),
        hits: c.get('hits'),
        misses: c.misses(),
      },
      memory: { activeBytes: c.get('activeBytes'), peakBytes: c.get('peakBytes'), cacheBytes: c.get('cacheBytes'), unreleasedBytes: c.get('unreleasedBytes') },
      streams: {
        foreignOps: c.get('foreignStreamOps'),
        clears: c.get('clears'),
        clearsSkipped: c.get('clearsSkipped'),
        clearWaitMs: c.get('clearWaitMs'),
        leases: c.get('leases'),
      },
    };
  }

  health(): Health {
    const persistence = this.#parts.store?.persistence() ?? 'off';
    const dead = (this.#link.death ?? this.#lost) !== null && !this.#closed;
    return {
      status: dead ? 'dead' : this.#closed ? 'closed' : persistence === 'degraded' ? 'degraded' : 'ok',
      heartbeatAgeMs: this.#parts.heartbeats(),
      persistence,
    };
  }

  diagnose(): Diagnosis {
    return this.#parts.diagnose();
  }

  override on<E extends keyof EngineEvents>(event: E, listener: (payload: EngineEvents[E]) => void): this {
    return super.on(event, listener);
  }

  override off<E extends keyof EngineEvents>(event: E, listener: (payload: EngineEvents[E]) => void): this {
    return super.off(event, listener);
  }

  async flush(options: { deadlineMs?: number } = {}): Promise<void> {
    this.#assertOpen();
    const deadlineMs = deadline('options.deadlineMs', options.deadlineMs, 60_000);
    await this.#parts.store?.flush(deadlineMs);
  }

  /** Ends running requests, drains what was accepted, then ends the threads. Calling it again gives the same report. */
  async close(options: CloseOptions = {}): Promise<CloseReport> {
    const deadlineMs = deadline('options.deadlineMs', options.deadlineMs, 60_000);
    this.#closing ??= this.#close(deadlineMs).finally(() => this.#parts.whenClosed());
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Delivery port, engine → main. */
  readonly receive = (message: Delivery): void => {
    if (message.kind === 'load') return this.#onLoad?.(message);
    if (message.kind === 'warning') return this.#emit('warning', { code: message.code, message: message.message });
    if (message.kind === 'degraded') {
      const { code, message: text, details } = message;
      return this.#parts.store?.engineDegraded({ code, message: text, details });
    }
    if (message.kind === 'lost') return this.#deviceLost(errorFromWire(message.error) as TidemarkError);
    const pending = this.#pending.get(message.requestNo);
    if (pending === undefined) return;
    const { requestId, stream } = pending;
    switch (message.kind) {
      case 'chunk':
        return pending.settled ? undefined : stream.chunk(message);
      case 'progress':
        return this.#emit('progress', { requestId, phase: message.phase, tokens: message.tokens, totalTokens: message.totalTokens });
      case 'miss':
        return this.#emit('miss', {
          requestId,
          reason: message.reason,
          detail: message.detail,
          cachedTokens: message.cachedTokens,
          promptTokens: message.promptTokens,
        });
      case 'error':
        stream.fail(errorFromWire(message.error));
        return this.#forget(message.requestNo, pending);
      case 'end':
        if (message.probe !== undefined) pending.probe?.(message.probe);
        if (!pending.settled) {
          // The engine ended it although nobody here asked: its shutdown.
          if (message.finishReason === 'abort') stream.fail(closedError());
          else stream.end(message);
        }
        return this.#forget(message.requestNo, pending);
    }
  };

  /** The engine thread ended without having been asked to: every pending answer rejects. */
  readonly died = (error: TidemarkError): void => {
    for (const [requestNo, pending] of this.#pending) {
      pending.stream.fail(error);
      this.#forget(requestNo, pending);
    }
    this.#parts.store?.engineDied();
    this.#emit('degraded', { code: error.code, message: error.message, details: error.details });
  };

  /** The engine thread lives, but can compute nothing more. */
  #deviceLost(error: TidemarkError): void {
    this.#lost = error;
    this.#emit('degraded', { code: error.code, message: error.message, details: error.details });
  }

  #submit(request: RequestOptions, mode: WireRequest['mode'], collect: boolean, probe?: ProbeOptions, onProbe?: (probe: Probe) => void): GenerationStream {
    this.#assertOpen();
    checkRequest(request);
    if (request.signal?.aborted) return GenerationStream.failed(request.requestId ?? `r${this.#nextRequestNo++}`, request.signal.reason);
    const ref = this.#requests.claim();
    if (ref === null) {
      throw new TidemarkError(
        'QUEUE_FULL',
        `${this.#requests.slots} requests are already waiting or running (maxQueue). Wait for one to end, or raise maxQueue.`,
      );
    }
    const requestNo = this.#nextRequestNo++;
    const requestId = request.requestId ?? `r${requestNo}`;
    const stream = new GenerationStream(
      requestId,
      {
        chunkRead: () => {
          if (this.#requests.chunkRead(ref)) this.#link.wake();
        },
        abort: () => this.#abort(requestNo, null),
      },
      collect,
    );
    const pending: Pending = { ref, requestId, stream, disarm: this.#arm(requestNo, request), settled: false, probe: onProbe ?? null };
    this.#pending.set(requestNo, pending);
    this.#requestIds.set(requestNo, requestId);
    this.#link.hold();
    const wire = wireRequest(request, {
      requestId,
      requestNo,
      ref,
      mode,
      persist: request.persist ?? this.#parts.options.persist,
      ...(probe === undefined ? {} : { probe }),
    });
    this.#link
      .call((api) => api.submit(wire))
      .catch((error: unknown) => {
        if (this.#pending.get(requestNo) !== pending) return;
        stream.fail(error);
        this.#forget(requestNo, pending);
      });
    return stream;
  }

  /** Abort signal and time limit of one request. */
  #arm(requestNo: number, request: RequestOptions): () => void {
    const { signal, timeoutMs } = request;
    if (signal !== undefined) this.#signals.add(signal, requestNo);
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(
            () =>
              this.#abort(requestNo, {
                reason: new TidemarkError('REQUEST_TIMEOUT', `The request took longer than its timeoutMs (${timeoutMs}). Raise it, or ask for fewer tokens.`),
              }),
            timeoutMs,
          );
    return () => {
      if (signal !== undefined) this.#signals.remove(signal, requestNo);
      clearTimeout(timer);
    };
  }

  /** Tells the caller at once; the engine reads the word between two steps and gives everything back. */
  #abort(requestNo: number, failure: { reason: unknown } | null): void {
    const pending = this.#pending.get(requestNo);
    if (pending === undefined || pending.settled) return;
    pending.settled = true;
    pending.disarm();
    this.#requests.abort(pending.ref);
    this.#link.wake();
    pending.stream.fail(failure === null ? new DOMException('The reader left the loop.', 'AbortError') : failure.reason);
  }

  #forget(requestNo: number, pending: Pending): void {
    pending.disarm();
    this.#pending.delete(requestNo);
    this.#requests.free(pending.ref);
    this.#link.unhold();
    this.#pruneIds();
  }

  /** Boundaries become durable after their request has ended, so ids outlive requests; the oldest are let go. */
  #pruneIds(): void {
    for (const requestNo of this.#requestIds.keys()) {
      if (this.#requestIds.size <= 4096) return;
      if (!this.#pending.has(requestNo)) this.#requestIds.delete(requestNo);
    }
  }

  async #close(deadlineMs: number): Promise<CloseReport> {
    const end = performance.now() + deadlineMs;
    const left = () => Math.max(100, end - performance.now());
    this.#closed = true;
    const ended = await this.#link.end(left());
    if (!ended) this.#giveUp();
    for (const [requestNo, pending] of this.#pending) {
      pending.stream.fail(ended ? closedError() : stuckError());
      this.#forget(requestNo, pending);
    }
    return (await this.#parts.store?.close(left())) ?? { durable: 0, lost: 0 };
  }

  /** Node would wait for the thread at the end of the process, for ever if need be. */
  #giveUp(): void {
    const { stuck } = this.#parts;
    const name = `engine ${this.#link.threadId}`;
    stuck.add(name);
    void this.#link.gone.then(() => stuck.delete(name));
  }

  #assertOpen(): void {
    if (this.#closed) throw closedError();
    const end = this.#link.death ?? this.#lost;
    if (end !== null) throw end;
  }

  readonly #emit = <E extends keyof EngineEvents>(event: E, payload: EngineEvents[E]): void => {
    if (this.#early === null) this.emit(event, payload);
    else this.#early.push(() => this.emit(event, payload));
  };
}

function closedError(): TidemarkError {
  return new TidemarkError('ENGINE_CLOSED', 'The engine has been closed. Create a new one.');
}

function stuckError(): TidemarkError {
  return new TidemarkError(
    'ENGINE_STUCK',
    'The engine did not come out of a native call before the deadline of close(). Its thread was given up; restart the process before the device is used again.',
  );
}

function wireInput(input: PromptInput): WireRequest['input'] {
  return {
    ...(input.prompt === undefined ? {} : { prompt: input.prompt }),
    ...(input.messages === undefined ? {} : { messages: input.messages }),
    ...(input.tokens === undefined ? {} : { tokens: Int32Array.from(input.tokens) }),
    ...(input.templateOptions === undefined ? {} : { templateOptions: input.templateOptions }),
  };
}

const SAMPLING_KEYS = ['temperature', 'topK', 'topP', 'minP', 'repetitionPenalty', 'repetitionContext', 'seed'] as const;

function wireRequest(request: RequestOptions, known: Pick<WireRequest, 'requestId' | 'requestNo' | 'ref' | 'mode' | 'persist' | 'probe'>): WireRequest {
  const sampling: SamplingOptions = {};
  for (const key of SAMPLING_KEYS) if (request[key] !== undefined) sampling[key] = request[key];
  return {
    ...known,
    input: wireInput(request),
    sampling,
    maxTokens: request.maxTokens ?? null,
    stop: typeof request.stop === 'string' ? [request.stop] : [...(request.stop ?? [])],
    stopTokens: [...(request.stopTokens ?? [])],
    ignoreEos: request.ignoreEos ?? false,
    noRestore: request.noRestore ?? false,
  };
}
