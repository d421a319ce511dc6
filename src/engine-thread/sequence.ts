/**
 * One request on the engine thread: queued → restoring → prefill → decode → finished.
 *
 * Runs on the engine thread only. `step()` does one bounded piece of work (one forward pass at most) and returns, so
 * that aborts, other sequences and the event loop get their turn between pieces. In a batch the pass is everybody's: the
 * scheduler asks `ready()`, computes, and gives each its logits (`decoded`). What a sequence owns (live caches or its row of
 * the batch, restore ticket, recorder) is given back in `end()`, which every path reaches exactly once.
 */
import type { FinishReason, Usage } from '../host/api.ts';
import type { Probe, RequestTimings, WireRequest } from '../shared/engine-protocol.ts';
import { errorToWire, isDeviceLost, type MissReason } from '../shared/errors.ts';
import type { BoundaryRecorder, PassCompanion } from './boundary/recorder.ts';
import type { RestoreAttempt } from './boundary/restore-attempt.ts';
import type { LayerCache } from './cache/layer-cache.ts';
import { releaseCaches } from './cache/registry.ts';
import type { BatchMember, Seat } from './decode-batch.ts';
import type { EngineContext } from './engine-context.ts';
import { Forks } from './forks.ts';
import { blockBoundariesIn, nextStop, type PrefillShape } from './prefill-plan.ts';
import { LogitsProbe } from './probe.ts';
import type { StreamingDetokenizer } from './text/detokenizer.ts';
import type { Sampler } from './text/sampler.ts';

/** How long a lone sequence may sleep for its next restored part before the engine looks at aborts again. */
const RESTORE_NAP_MS = 5;

export type StepResult = 'worked' | 'waiting' | 'ended';
export type SequenceState = 'queued' | 'restoring' | 'prefill' | 'decode' | 'finished';

export interface SequenceParts {
  request: WireRequest;
  promptTokens: Int32Array;
  maxTokens: number;
  endTokens: ReadonlySet<number>;
  sampler: Sampler;
  detokenizer: StreamingDetokenizer;
  /** null: nothing of this request is stored. */
  recorder: BoundaryRecorder | null;
  /** null: nothing is looked up; `missReason` then says why. */
  restore: RestoreAttempt | null;
  missReason: MissReason | null;
}

export class Sequence implements BatchMember {
  readonly request: WireRequest;
  /** Prompt and answer so far. The caches hold the first `#computed` of them. */
  readonly tokens: number[];
  readonly promptLength: number;
  readonly #context: EngineContext;
  readonly #parts: SequenceParts;
  readonly #shape: PrefillShape;
  readonly #probe: LogitsProbe | null;
  readonly #forks: Forks | null;
  readonly #submittedAt = performance.now();
  readonly #timings: RequestTimings = { queuedMs: 0, restoreMs: 0, prefillMs: 0, firstTokenMs: 0, totalMs: 0 };
  #state: SequenceState = 'queued';
  #caches: LayerCache[] = [];
  /** Where its row is instead, while it decodes together with others. */
  #seat: Seat | null = null;
  #paused = false;
  #computed = 0;
  #cachedTokens = 0;
  #missReason: MissReason | null;
  #chunksSent = 0;
  #unsentIds: number[] = [];
  #phaseSince = 0;

  constructor(context: EngineContext, parts: SequenceParts) {
    this.#context = context;
    this.#parts = parts;
    this.request = parts.request;
    this.tokens = Array.from(parts.promptTokens);
    this.promptLength = this.tokens.length;
    this.#missReason = parts.missReason;
    const probe = parts.request.probe;
    this.#probe = probe === undefined ? null : new LogitsProbe(probe, context.stream);
    this.#forks = probe?.forks === true ? new Forks(context.stream) : null;
    const { deterministic, prefillChunk, blockSize } = context.options;
    this.#shape = {
      total: this.promptLength,
      chunk: probe === undefined ? prefillChunk : (probe.chunk ?? this.promptLength),
      onGrid: deterministic,
      blockSize,
      // Deterministic engines stop at the same places whatever is stored and restored.
      stopAtBoundaries: deterministic || (parts.recorder !== null && context.model.hasFixedState),
      stopBeforeLast: !deterministic && parts.recorder !== null,
    };
  }

  get state(): SequenceState {
    return this.#state;
  }

  /** Tokens of the next prefill pass. */
  get nextPass(): number {
    return nextStop(this.#computed, this.#shape) - this.#computed;
  }

  /** The token that the next decode step takes. */
  get nextToken(): number {
    return this.tokens[this.#computed]!;
  }

  get caches(): readonly LayerCache[] {
    return this.#caches;
  }

  /** One piece of work. Never throws: a failure ends this sequence alone, except where the device itself is lost. */
  step(): StepResult {
    if (this.#state === 'finished') return 'ended';
    try {
      if (this.#context.requests.isAborted(this.request.ref)) return this.#finish('abort');
      switch (this.#state) {
        case 'queued':
          return this.#begin();
        case 'restoring':
          return this.#pollRestore();
        case 'prefill':
          return this.#prefillPass();
        case 'decode':
          return this.#decodeStep();
      }
    } catch (error) {
      this.#fail(error);
      return 'ended';
    }
  }

  /** Whether the next pass of the batch is for it too: not when it has been aborted, nor when its reader is too far behind. */
  ready(): 'ready' | StepResult {
    if (this.#state === 'finished') return 'ended';
    try {
      if (this.#context.requests.isAborted(this.request.ref)) return this.#finish('abort');
      return this.#mustPause() ? 'waiting' : 'ready';
    } catch (error) {
      this.#fail(error);
      return 'ended';
    }
  }

  /** The pass of the batch has taken `nextToken`; `row` are the logits behind it. Never throws. */
  decoded(row: Float32Array): StepResult {
    if (this.#state === 'finished') return 'ended';
    try {
      this.#tookToken();
      return this.#accept(row);
    } catch (error) {
      this.#fail(error);
      return 'ended';
    }
  }

  seated(seat: Seat): void {
    this.#seat = seat;
    releaseCaches(this.#caches);
    this.#caches = [];
  }

  adopt(caches: LayerCache[]): void {
    this.#seat = null;
    this.#caches = caches;
  }

  /** For a sequence that still waits in the queue: ends it when its abort word is set. */
  endIfAborted(): boolean {
    if (!this.#context.requests.isAborted(this.request.ref)) return false;
    this.cancel();
    return true;
  }

  /** Ends the sequence from outside (abort while queued, engine shutdown). Never throws: others are to be ended too. */
  cancel(): void {
    if (this.#state === 'finished') return;
    try {
      this.#finish('abort');
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Ends the sequence with an error that is not its own; nothing more of it is stored. */
  fail(error: unknown): void {
    if (this.#state !== 'finished') this.#fail(error);
  }

  #begin(): StepResult {
    const now = performance.now();
    this.#timings.queuedMs = now - this.#submittedAt;
    this.#phaseSince = now;
    this.#context.counters.add('promptTokens', this.promptLength);
    if (this.#parts.restore === null) return this.#startPrefill();
    this.#enter('restoring');
    this.#parts.restore.begin();
    return 'worked';
  }

  #pollRestore(): StepResult {
    const restore = this.#parts.restore!;
    const outcome = restore.poll(this.#context.alone() ? RESTORE_NAP_MS : 0);
    if (outcome === 'waiting') return 'waiting';
    this.#timings.restoreMs = performance.now() - this.#phaseSince;
    this.#phaseSince = performance.now();
    if (outcome.caches !== null) {
      this.#caches = outcome.caches;
      this.#computed = outcome.tokenCount;
      this.#cachedTokens = outcome.tokenCount;
      this.#context.counters.add('cachedTokens', outcome.tokenCount);
      this.#context.counters.add('hits');
      this.#context.counters.add('bytesRestored', outcome.bytes);
      this.#parts.recorder?.resumeAt(outcome.tokenCount, this.tokens);
    }
    this.#missReason = outcome.missReason;
    if (outcome.missReason !== null) {
      this.#context.counters.addMiss(outcome.missReason);
      this.#context.deliver({
        kind: 'miss',
        requestNo: this.request.requestNo,
        reason: outcome.missReason,
        detail: outcome.detail,
        cachedTokens: this.#cachedTokens,
        promptTokens: this.promptLength,
      });
    }
    return this.#startPrefill();
  }

  #startPrefill(): StepResult {
    this.#enter('prefill');
    if (this.#caches.length === 0) this.#caches = this.#context.model.makeCaches();
    return 'worked';
  }

  #prefillPass(): StepResult {
    const from = this.#computed;
    const to = nextStop(from, this.#shape);
    const last = to === this.promptLength;
    const wanted = last && this.request.mode === 'generate';
    const row = this.#context.forward(this.tokens.slice(from, to), this.#caches, wanted ? 'last' : 'none', this.#announce(to));
    this.#computed = to;
    this.#context.counters.add('prefillPasses');
    this.#context.counters.add('prefilledTokens', to - from);
    this.#capture(blockBoundariesIn(from, to, this.#shape.blockSize), this.#shape.stopBeforeLast && to === this.promptLength - 1);
    this.#context.clears.afterPrefillPass(to - from);
    if (!last) {
      this.#context.deliver({ kind: 'progress', requestNo: this.request.requestNo, phase: 'prefill', tokens: to, totalTokens: this.promptLength });
      return 'worked';
    }
    this.#timings.prefillMs = performance.now() - this.#phaseSince;
    if (row === null) return this.#finish('length');
    this.#enter('decode');
    if (this.#probe !== null) {
      this.#probe.prompt(row, this.#caches);
      this.#continueForks();
    }
    if (this.#parts.maxTokens === 0) return this.#finish('length');
    return this.#accept(row);
  }

  #decodeStep(): StepResult {
    if (this.#mustPause()) return 'waiting';
    const row = this.#context.forward([this.nextToken], this.#caches, 'last', this.#announce(this.#computed + 1))!;
    this.#context.counters.add('decodePasses');
    this.#tookToken();
    this.#context.clears.afterDecodeStep();
    return this.#accept(row);
  }

  #tookToken(): void {
    this.#computed++;
    // What a step of one token leaves behind differs in its last bits from what a prefill does: deterministic engines keep the latter alone.
    if (this.#computed % this.#shape.blockSize === 0 && !this.#shape.onGrid) this.#capture([this.#computed], false);
  }

  /** Samples from `row`, sends what can be shown, and ends the answer where it must end. */
  #accept(row: Float32Array): StepResult {
    this.#probe?.step(row);
    const token = this.#parts.sampler.sample(row, this.tokens, this.tokens.length - this.promptLength);
    if (this.#timings.firstTokenMs === 0) this.#timings.firstTokenMs = performance.now() - this.#submittedAt;
    this.#context.counters.add('decodedTokens');
    if (this.#parts.endTokens.has(token)) return this.#finish('stop');
    this.tokens.push(token);
    this.#unsentIds.push(token);
    const text = this.#parts.detokenizer.push(token);
    if (this.#parts.detokenizer.stopped !== null) return this.#finish('stop', text);
    if (this.tokens.length - this.promptLength >= this.#parts.maxTokens) return this.#finish('length', text);
    if (text !== '') {
      this.#context.deliver({
        kind: 'chunk',
        requestNo: this.request.requestNo,
        text,
        tokenIds: this.#unsentIds,
        index: this.#chunksSent++,
      });
      this.#unsentIds = [];
    }
    return 'worked';
  }

  /** A reader that is too far behind pauses its own sequence only. */
  #mustPause(): boolean {
    const { requests, options } = this.#context;
    // To leave a batch and come back copies every row: it is done once for many chunks, not for each that is read.
    const limit = this.#paused && options.maxNumSeqs > 1 ? Math.ceil(options.maxUnreadChunks / 2) : options.maxUnreadChunks;
    const ahead = () => this.#chunksSent - requests.chunksRead(this.request.ref) >= limit;
    this.#paused = ahead();
    if (!this.#paused) return false;
    requests.pause(this.request.ref);
    this.#paused = ahead();
    return this.#paused;
  }

  /** The next pass ends at `to`: if that is captured, the recorder prepares it meanwhile. */
  #announce(to: number): PassCompanion | null {
    const captured = to % this.#shape.blockSize === 0 || (this.#shape.stopBeforeLast && to === this.promptLength - 1);
    return captured ? (this.#parts.recorder?.announce(this.#caches, this.tokens, to) ?? null) : null;
  }

  #capture(boundaries: number[], beforeLast: boolean): void {
    const recorder = this.#parts.recorder;
    if (recorder === null) return;
    const points = beforeLast && !boundaries.includes(this.#computed) ? [...boundaries, this.#computed] : boundaries;
    if (points.length === 0) return;
    this.#withCaches((caches) => {
      for (const at of points) {
        recorder.capture(caches, this.tokens, at, this.#state === 'prefill' && this.#context.alone());
        this.#forks?.take(at, caches);
      }
    });
  }

  /** Its own caches, or its row of the batch as caches of its own for as long as `use` runs. */
  #withCaches(use: (caches: readonly LayerCache[]) => void): void {
    if (this.#seat === null) return use(this.#caches);
    const row = this.#seat.copy();
    try {
      use(row);
    } finally {
      releaseCaches(row);
    }
  }

  /** Whether the end of the answer is to be stored; asked before a row is copied out of the batch for it. */
  #storesEnd(reason: FinishReason): boolean {
    if (this.#parts.recorder === null || this.#shape.onGrid || (this.#seat === null && this.#caches.length === 0)) return false;
    return this.#computed > 0 && (reason !== 'abort' || this.request.persist === 'finish');
  }

  /** Takes the forks so far to the end of what is known. */
  #continueForks(): void {
    this.#forks?.continueTo(this.tokens, this.#shape, this.#context.forward, (fork, row) => this.#probe!.fork(fork, row));
  }

  #finish(reason: FinishReason, lastText = ''): StepResult {
    const tail = reason === 'abort' ? '' : lastText + this.#parts.detokenizer.finish();
    // The state behind the last computed token is where the next turn of a conversation starts.
    if (this.#storesEnd(reason))
      this.#withCaches((caches) => this.#parts.recorder?.finish(caches, this.tokens, this.#computed, reason === 'abort', this.#context.alone()));
    if (this.#forks !== null && reason === 'length' && this.#computed < this.tokens.length) {
      this.#withCaches((caches) => this.#forks?.take(this.#computed, caches));
      this.#continueForks();
    }
    this.#timings.totalMs = performance.now() - this.#submittedAt;
    const usage: Usage = { promptTokens: this.promptLength, cachedTokens: this.#cachedTokens, completionTokens: this.tokens.length - this.promptLength };
    const probe: Probe | undefined = this.#probe?.result(this.#cachedTokens, this.#missReason);
    this.#context.counters.add(reason === 'abort' ? 'aborted' : 'finished');
    const brokenOff = reason === 'abort' && this.#state === 'prefill';
    this.#end();
    if (brokenOff) this.#clearNow();
    this.#context.deliver({
      kind: 'end',
      requestNo: this.request.requestNo,
      text: tail,
      tokenIds: this.#unsentIds,
      index: this.#chunksSent,
      finishReason: reason,
      usage,
      missReason: this.#missReason,
      timings: this.#timings,
      ...(probe === undefined ? {} : { probe }),
    });
    return 'ended';
  }

  #fail(error: unknown): void {
    this.#context.counters.add('failed');
    const held = this.#caches.length > 0 || this.#seat !== null;
    this.#end();
    this.#context.deliver({ kind: 'error', requestNo: this.request.requestNo, error: errorToWire(error) });
    this.#context.onStepError(error);
    if (held && !isDeviceLost(error)) this.#clearNow();
  }

  /** This sequence has ended. What its clear meets is told to the engine; arrays that it spoils say so themselves when they are used. */
  #clearNow(): void {
    try {
      this.#context.clears.afterBrokenOff();
    } catch (error) {
      this.#context.onStepError(error);
    }
  }

  #end(): void {
    this.#enter('finished');
    this.#parts.restore?.cancel();
    this.#parts.recorder?.close();
    this.#forks?.release();
    this.#seat?.giveUp();
    this.#seat = null;
    releaseCaches(this.#caches);
    this.#caches = [];
    this.#context.clears.afterFinish();
  }

  #enter(state: 'restoring' | 'prefill' | 'decode' | 'finished'): void {
    this.#state = state;
    this.#context.requests.setState(this.request.ref, state);
  }
}
