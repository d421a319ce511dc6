/**
 * The engine: one model on one stream, its sequences, and the loop that gives each its turn.
 *
 * Engine thread only. The loop turns the event loop by a macrotask after each round, so that submissions, nudges and
 * the worker's own messages arrive; what must be seen at once (aborts, readers' progress) lies in shared words.
 * Idle, it sleeps on a promise: no timer runs and nothing keeps the process alive.
 */
import type { MessagePort } from 'node:worker_threads';
import { EngineCounters } from '../shared/engine-counters.ts';
import type { Delivery, EngineInit, EngineStoreInit, LoadedModel, WireRequest } from '../shared/engine-protocol.ts';
import { errorToWire, isDeviceLost, TidemarkError } from '../shared/errors.ts';
import { bufferAccessLock } from '../shared/process-shared.ts';
import { RequestTable } from '../shared/request-table.ts';
import type { ThreadHandle } from '../shared/sync/thread-table.ts';
import { CacheClears } from './cache-clears.ts';
import { prepareDevice } from './device.ts';
import type { EngineContext } from './engine-context.ts';
import { EngineModel } from './engine-model.ts';
import { EngineStoreClient } from './engine-store-client.ts';
import { type AppliedLimits, applyMemoryLimits } from './memory-limits.ts';
import { leaseAccess } from './mlx/lease-access.ts';
import { activeBytes, cacheBytes, peakBytes } from './mlx/memory.ts';
import { clearCounts, clearThreadStreams, syncAndClearCache, unreleasedBytes } from './mlx/metal-sync.ts';
import { deviceInfo, foreignStreamOps } from './mlx/streams.ts';
import { numericsKeys } from './numerics.ts';
import { buildSequence } from './request-builder.ts';
import { Scheduler } from './scheduler.ts';

const macrotask = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const UNRELEASED_EVERY_MS = 250;
const REAP_EVERY_MS = 10;

export class EngineCore {
  readonly #init: EngineInit;
  readonly #self: ThreadHandle;
  readonly #port: MessagePort;
  readonly #scheduler: Scheduler;
  readonly #counters: EngineCounters;
  #context: EngineContext | null = null;
  #model: EngineModel | null = null;
  #store: EngineStoreClient | null = null;
  #wake: (() => void) | null = null;
  #running = false;
  #stopped = false;
  #lost: TidemarkError | null = null;
  #unreleasedAt = 0;
  #giveBack: () => void = () => undefined;
  #limits: AppliedLimits | null = null;

  constructor(init: EngineInit, self: ThreadHandle) {
    this.#init = init;
    this.#self = self;
    this.#port = init.delivery;
    const { maxNumSeqs, prefillChunk, deterministic } = init.options;
    this.#scheduler = new Scheduler({ maxRunning: maxNumSeqs, prefillBudget: prefillChunk, deterministic });
    this.#counters = new EngineCounters(init.counters);
    this.#port.on('message', () => this.#wake?.());
  }

  load(): LoadedModel {
    const { options } = this.#init;
    this.#self.activity('load', options.model, 600_000);
    const { stream, device } = prepareDevice(options);
    this.#limits = applyMemoryLimits(options.memory, deviceInfo(device));
    if (this.#limits.warning !== null) this.#deliver({ kind: 'warning', code: 'MEMORY_LIMITS', message: this.#limits.warning });
    const bufferAccess = bufferAccessLock(this.#init.shared, this.#self);
    const model = EngineModel.load(
      options,
      stream,
      device,
      (progress) => this.#deliver({ kind: 'load', progress }),
      (message) => this.#deliver({ kind: 'warning', code: 'MODEL', message }),
    );
    this.#model = model;
    this.#store =
      this.#init.store === null
        ? null
        : new EngineStoreClient(
            this.#init.store,
            this.#self,
            model,
            numericsKeys(model, options),
            {
              warn: (message) => this.#deliver({ kind: 'warning', code: 'BOUNDARY', message }),
              degraded: (code, message, details) => this.#deliver({ kind: 'degraded', code, message, details }),
            },
            leaseAccess(this.#init.shared, this.#self),
          );
    this.#giveBack = () => {
      const cleared = syncAndClearCache(stream, bufferAccess);
      this.#counters.add(cleared ? 'clears' : 'clearsSkipped');
      this.#counters.set('clearWaitMs', clearCounts().waitedMs);
    };
    // Reading the weights leaves copies of them behind.
    this.#giveBack();
    const clears = new CacheClears(this.#giveBack, options.prefillChunk);
    this.#context = {
      options,
      stream,
      model,
      requests: new RequestTable(this.#init.requests),
      counters: this.#counters,
      clears,
      forward: (tokens, caches, logits, beside = null) => {
        this.#self.activity('stream', `forward ${tokens.length}`, 2_000 + tokens.length * 50);
        return model.forward(tokens, caches, logits, this.#store?.alongside(beside) ?? beside);
      },
      alone: () => this.#scheduler.alone,
      deliver: (message) => this.#deliver(message),
      onStepError: (error) => this.#onStepError(error),
    };
    this.#scheduler.decodeWith({
      stream,
      decode: (tokens, caches) => {
        this.#self.activity('stream', `decode ${tokens.length} rows`, 2_000 + tokens.length * 50);
        const rows = model.decode(tokens, caches, this.#store?.alongside(null) ?? null);
        this.#counters.add('decodePasses');
        clears.afterDecodeStep();
        return rows;
      },
    });
    this.#self.idle();
    return model.describe();
  }

  /** Queues the request; resolves with its prompt length. What is wrong with it throws here, before any computation. */
  submit(request: WireRequest): { promptTokens: number } {
    if (this.#lost !== null) throw this.#lost;
    const context = this.#context;
    if (context === null || this.#stopped) throw new TidemarkError('ENGINE_CLOSED', 'The engine is not running. Create a new one.');
    const sequence = buildSequence(context, this.#store, request);
    this.#scheduler.add(sequence);
    if (!this.#running) void this.#loop();
    else this.#wake?.();
    return { promptTokens: sequence.promptLength };
  }

  countTokens(input: WireRequest['input']): number {
    if (this.#model === null) throw new TidemarkError('ENGINE_CLOSED', 'The engine is not running. Create a new one.');
    return this.#model.encode(input).length;
  }

  /** Between two rounds: no sequence is in the middle of handing something over. */
  renewStore(init: EngineStoreInit): void {
    if (!this.#stopped) this.#store?.renew(init);
  }

  /** Running requests end as aborted, then the streams are drained and everything of the device is let go. */
  shutdown(): void {
    if (this.#stopped) return;
    this.#stopped = true;
    try {
      this.#scheduler.cancelAll();
      this.#store?.close();
      this.#model?.release();
      this.#endStreams();
    } finally {
      this.#limits?.restore();
      this.#wake?.();
      this.#port.close();
    }
  }

  /** Either may deliver the error of something that was still in flight; the streams end all the same. */
  #endStreams(): void {
    try {
      // The allocator is the process's: what this model has left there is of no use to another engine.
      this.#giveBack();
    } finally {
      clearThreadStreams();
    }
  }

  async #loop(): Promise<void> {
    this.#running = true;
    while (!this.#stopped) {
      this.#self.beat();
      const result = this.#scheduler.round();
      this.#store?.endOfRound(result === 'worked' && this.#lost === null);
      this.#store?.reapLeases();
      this.#publishFigures();
      if (this.#lost !== null) break;
      if (result === 'idle') break;
      if (result === 'waiting' && !this.#scheduler.restoring) await this.#nap();
      else await macrotask();
    }
    this.#self.idle();
    this.#running = false;
    this.#reapLater();
  }

  /** With no step to come, arrays that are still leased are let go soon after they are copied; then no timer runs. */
  #reapLater(): void {
    if (this.#running || this.#stopped || this.#store === null || this.#store.reapLeases() === 0) return;
    setTimeout(() => this.#reapLater(), REAP_EVERY_MS);
  }

  /** Every sequence waits for its reader: sleep until a nudge says that one of them read on, aborted or a request came. */
  async #nap(): Promise<void> {
    this.#self.idle();
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    this.#wake = null;
  }

  #publishFigures(): void {
    this.#counters.set('activeBytes', activeBytes());
    this.#counters.set('peakBytes', peakBytes());
    this.#counters.set('cacheBytes', cacheBytes());
    this.#counters.set('foreignStreamOps', foreignStreamOps());
    this.#counters.set('leases', this.#store?.leasesGiven ?? 0);
    this.#publishUnreleased();
  }

  /** Reading the process's footprint costs as much as a small step. */
  #publishUnreleased(): void {
    const at = performance.now();
    if (at < this.#unreleasedAt + UNRELEASED_EVERY_MS) return;
    this.#unreleasedAt = at;
    this.#counters.set('unreleasedBytes', unreleasedBytes());
  }

  /** A lost device fails everybody, for the same reason, and the engine takes nothing more. */
  #onStepError(error: unknown): void {
    if (this.#lost !== null || !isDeviceLost(error)) return;
    this.#lost = error;
    this.#scheduler.failAll(error);
    this.#deliver({ kind: 'lost', error: errorToWire(error) });
  }

  #deliver(message: Delivery): void {
    this.#port.postMessage(message);
  }
}
