/**
 * One engine's cache as main sees it: its session with the folder's store, whose events become the engine's.
 *
 * A folder that can't be used is no error. There is then no session (or a read-only one), and one `degraded` event says so.
 */
import type { EngineStoreInit, ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { CloseReport, EngineEvents, Health } from './api.ts';
import type { LostSession } from './keeper-protocol.ts';
import type { ProcessRegistry } from './process-registry.ts';
import { type StoreFigures, StoreSession } from './store-session.ts';
import type { ResolvedCacheOptions } from './validate.ts';

type Emit = <E extends keyof EngineEvents>(event: E, payload: EngineEvents[E]) => void;
export class EngineStore {
  readonly cacheDir: string;
  readonly #options: ResolvedEngineOptions;
  readonly #attached: StoreSession | null;
  /** Events of the time before there is an engine to tell them. */
  #unbound: ((emit: Emit) => void)[] = [];
  #requestIdOf: (requestNo: number) => string = () => '';
  #emit: Emit = (event, payload) => void this.#unbound.push((emit) => emit(event, payload));
  #lost = false;

  private constructor(cacheDir: string, options: ResolvedEngineOptions, attached: StoreSession | null, degraded: EngineEvents['degraded'] | null) {
    this.cacheDir = cacheDir;
    this.#options = options;
    this.#attached = attached;
    if (degraded !== null) this.#emit('degraded', degraded);
    attached?.hub.on('store', this.#onStore);
    attached?.hub.on('lost', this.#onLost);
  }

  static async open(registry: ProcessRegistry, cache: ResolvedCacheOptions, options: ResolvedEngineOptions): Promise<EngineStore> {
    const { dir, maxBytes, blockSize, pendingMaxBytes, overflow } = cache;
    const { session, degraded } = await StoreSession.open(registry, { dir, maxBytes, blockSize, limits: { pendingMaxBytes, overflow } });
    return new EngineStore(session?.hub.dir ?? dir, options, session, degraded);
  }

  /** For the engine's Worker; the port is transferred with it. */
  engineInit(): EngineStoreInit | null {
    if (this.#attached === null) return null;
    const { hub, memory, hubPort } = this.#attached;
    const { blockSize, restoreDeadlineMs, salt, stateCodec } = this.#options;
    return { memory, cacheDir: hub.dir, mode: hub.mode, hubPort, blockSize, restoreDeadlineMs, salt, stateCodec };
  }

  /** From now on the engine hears what the store has to say, first of all what it has said so far. */
  bind(requestIdOf: (requestNo: number) => string, emit: Emit): void {
    this.#requestIdOf = requestIdOf;
    this.#emit = emit;
    for (const tell of this.#unbound.splice(0)) tell(emit);
  }

  persistence(): Health['persistence'] {
    if (this.#attached === null || this.#options.persist === 'off') return 'off';
    return this.#lost ? 'degraded' : this.#attached.hub.persistence;
  }

  stats(): StoreFigures {
    if (this.#attached !== null) return this.#attached.figures();
    const none = { captured: 0, coalesced: 0, written: 0, durable: 0, superseded: 0, evicted: 0, dropped: {}, failed: 0, pending: 0 };
    return { boundaries: none, pendingBytes: 0, peakPendingBytes: 0, backpressureMs: 0, bytesWritten: 0, codecFallbacks: 0 };
  }

  async flush(deadlineMs: number): Promise<void> {
    await this.#attached?.flush(deadlineMs);
  }

  /** The engine thread is gone: what it had queued is still written, nothing more is accepted. */
  engineDied(): void {
    void this.#attached?.detach(60_000);
  }

  async close(deadlineMs: number): Promise<CloseReport> {
    if (this.#attached === null) return { durable: 0, lost: 0 };
    const report = await this.#attached.close(deadlineMs);
    this.#attached.hub.off('store', this.#onStore);
    this.#attached.hub.off('lost', this.#onLost);
    return report;
  }

  readonly #onStore = (event: StoreEvent): void => {
    if (this.#attached?.concerns(event) !== true) return;
    switch (event.type) {
      case 'durable':
        return this.#emit('durable', { requestId: this.#requestIdOf(event.requestNo), tokenCount: event.tokenCount, block: event.block });
      case 'degraded':
        return this.#emit('degraded', { code: event.code, message: event.message, details: event.details });
      case 'recovered':
        return this.#emit('recovered', { code: event.code, message: event.message });
      case 'note':
        return this.#emit('warning', { code: event.code, message: event.message });
      default:
        // Single boundaries that were not stored show in the ledger and, when it lasts, as `degraded`.
        return;
    }
  };

  readonly #onLost = (lost: LostSession): void => {
    if (lost.session !== this.#attached?.memory.number || this.#lost) return;
    this.#lost = true;
    this.#emit('degraded', {
      code: 'SESSION_CLOSED',
      message: `The thread '${lost.thread}' died holding the lock '${lost.lock}' (${lost.site}). This engine stores nothing more; answers are not affected. Create a new engine to store again.`,
      details: { ...lost },
    });
  };
}
