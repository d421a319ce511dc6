/**
 * One engine's cache as main sees it: its session with the folder's store, whose events become the engine's.
 *
 * A folder that can't be used is no error. There is then no session (or a read-only one), and one `degraded` event says so.
 * A session of which a lock was lost with its owner is replaced: what the lock guarded may be half changed, so that nothing
 * of the old one is used again.
 */
import type { EngineStoreInit, ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { CloseReport, EngineEvents, Health } from './api.ts';
import type { LostSession } from './keeper-protocol.ts';
import type { ProcessRegistry } from './process-registry.ts';
import { addFigures, noFigures, type StoreFigures } from './store-figures.ts';
import { StoreSession } from './store-session.ts';
import type { ResolvedCacheOptions } from './validate.ts';

const FORMER_CLOSE_MS = 10_000;

type Emit = <E extends keyof EngineEvents>(event: E, payload: EngineEvents[E]) => void;
/** Gives the engine thread a session in the place of the one it has. */
type Renew = (init: EngineStoreInit) => Promise<void>;

export class EngineStore {
  readonly cacheDir: string;
  readonly #options: ResolvedEngineOptions;
  readonly #reopen: () => Promise<StoreSession | null>;
  #attached: StoreSession | null;
  /** Sessions that were lost, newest last. Their figures still count. */
  readonly #former: StoreSession[] = [];
  /** Boundaries that were lost with them. */
  #formerLost = 0;
  #renew: Renew | null = null;
  #replacing: Promise<void> | null = null;
  #closed = false;
  /** Events of the time before there is an engine to tell them. */
  #unbound: ((emit: Emit) => void)[] = [];
  #requestIdOf: (requestNo: number) => string = () => '';
  #emit: Emit = (event, payload) => void this.#unbound.push((emit) => emit(event, payload));
  #lost = false;
  #storesNothing = false;

  private constructor(
    cacheDir: string,
    options: ResolvedEngineOptions,
    attached: StoreSession | null,
    degraded: EngineEvents['degraded'] | null,
    reopen: () => Promise<StoreSession | null>,
  ) {
    this.cacheDir = cacheDir;
    this.#options = options;
    this.#reopen = reopen;
    this.#attached = attached;
    if (degraded !== null) this.#emit('degraded', degraded);
    attached?.hub.on('store', this.#onStore);
    attached?.hub.on('lost', this.#onLost);
  }

  static async open(registry: ProcessRegistry, cache: ResolvedCacheOptions, options: ResolvedEngineOptions): Promise<EngineStore> {
    const { dir, maxBytes, blockSize, pendingMaxBytes, overflow } = cache;
    const open = () => StoreSession.open(registry, { dir, maxBytes, blockSize, limits: { pendingMaxBytes, overflow } });
    const { session, degraded } = await open();
    return new EngineStore(session?.hub.dir ?? dir, options, session, degraded, async () => (await open()).session);
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

  /** How a new session gets to the engine thread. */
  onRenewal(renew: Renew): void {
    this.#renew = renew;
  }

  persistence(): Health['persistence'] {
    if (this.#attached === null || this.#options.persist === 'off') return 'off';
    return this.#lost || this.#storesNothing ? 'degraded' : this.#attached.hub.persistence;
  }

  stats(): StoreFigures {
    return this.#sessions.map((session) => session.figures()).reduce(addFigures, noFigures());
  }

  async flush(deadlineMs: number): Promise<void> {
    const end = performance.now() + deadlineMs;
    await this.#replacing;
    await this.#attached?.flush(Math.max(0, end - performance.now()));
  }

  /** The engine thread is gone: what it had queued is still written, nothing more is accepted. */
  engineDied(): void {
    void this.#attached?.detach(60_000);
  }

  /** The engine thread cannot store anything, and says why. */
  engineDegraded(problem: EngineEvents['degraded']): void {
    this.#storesNothing = true;
    this.#emit('degraded', problem);
  }

  async close(deadlineMs: number): Promise<CloseReport> {
    this.#closed = true;
    await this.#replacing;
    if (this.#attached === null) return { durable: 0, lost: 0 };
    const { durable, lost } = await this.#attached.close(deadlineMs);
    this.#attached.hub.off('store', this.#onStore);
    this.#attached.hub.off('lost', this.#onLost);
    return { durable, lost: lost + this.#formerLost };
  }

  get #sessions(): StoreSession[] {
    return this.#attached === null ? this.#former : [...this.#former, this.#attached];
  }

  readonly #onStore = (event: StoreEvent): void => {
    if (!this.#sessions.some((session) => session.concerns(event))) return;
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
      message: `The thread '${lost.thread}' died holding the lock '${lost.lock}' (${lost.site}). ${lost.failed} boundaries were lost with it; answers are not affected. Storing goes on in a new session.`,
      details: { ...lost },
    });
    this.#replacing = this.#replace(this.#attached).catch((error: unknown) => {
      const why = error instanceof Error ? error.message : String(error);
      this.#emit('warning', { code: 'SESSION_CLOSED', message: `There is no new session (${why}). This engine stores nothing more: create a new one.` });
    });
  };

  /** A new session first, then the old one goes: the store must not be closed in between. */
  async #replace(old: StoreSession): Promise<void> {
    const session = this.#closed || this.#renew === null ? null : await this.#reopen();
    if (session === null) throw new Error('the cache folder cannot be opened again');
    this.#former.push(old);
    this.#attached = session;
    try {
      await this.#renew!(this.engineInit()!);
    } finally {
      const { lost } = await old.close(FORMER_CLOSE_MS);
      this.#formerLost += lost;
    }
    this.#lost = false;
    this.#emit('recovered', { code: 'SESSION_CLOSED', message: 'Storing goes on in a new session.' });
  }
}
