/**
 * One engine's cache as main sees it: its session with the folder's store, the store's events turned into the engine's,
 * and figures read from shared memory. Main thread: waits are promises, no lock is taken.
 *
 * A folder that can't be used is no error. There is then no session (or a read-only one), and one `degraded` event says so.
 */
import { statfs } from 'node:fs/promises';
import type { MessagePort } from 'node:worker_threads';
import { createRestoreMemory } from '../shared/blocks/restore-channel.ts';
import type { EngineStoreInit, ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import type { StoreEvent } from '../shared/events.ts';
import { attachSession, createSessionMemory, type Session, type SessionMemory } from '../shared/session/index.ts';
import type { CloseReport, EngineEvents, EngineStats, Health } from './api.ts';
import type { LostSession } from './keeper-protocol.ts';
import type { ProcessRegistry } from './process-registry.ts';
import { openStoreHub, type StoreHub } from './store-hub.ts';
import type { ResolvedCacheOptions } from './validate.ts';

const GB = 1_000_000_000;
const POLL_MS = 10;

type Emit = <E extends keyof EngineEvents>(event: E, payload: EngineEvents[E]) => void;
type StoreStats = Pick<EngineStats['store'], 'pendingBytes' | 'peakPendingBytes' | 'backpressureMs' | 'bytesWritten'> & Pick<EngineStats, 'boundaries'>;

interface Attached {
  readonly hub: StoreHub;
  readonly memory: SessionMemory;
  readonly session: Session;
  readonly hubPort: MessagePort;
}

export class EngineStore {
  readonly cacheDir: string;
  readonly #options: ResolvedEngineOptions;
  readonly #attached: Attached | null;
  /** What was wrong from the start; told once the app can listen. */
  #early: EngineEvents['degraded'][] = [];
  #requestIdOf: (requestNo: number) => string = () => '';
  #emit: Emit = () => undefined;
  #lost = false;
  #detached = false;

  private constructor(cacheDir: string, options: ResolvedEngineOptions, attached: Attached | null, early: EngineEvents['degraded'] | null) {
    this.cacheDir = cacheDir;
    this.#options = options;
    this.#attached = attached;
    if (early !== null) this.#early.push(early);
    attached?.hub.on('store', this.#onStore);
    attached?.hub.on('lost', this.#onLost);
  }

  static async open(registry: ProcessRegistry, cache: ResolvedCacheOptions, options: ResolvedEngineOptions): Promise<EngineStore> {
    const { hub, degraded } = await openStoreHub(registry, {
      dir: cache.dir,
      maxBytes: cache.maxBytes ?? (await defaultMaxBytes(cache.dir)),
      blockSize: cache.blockSize,
    });
    if (hub === null) return new EngineStore(cache.dir, options, null, degraded);
    const memory = createSessionMemory({
      stagingRoot: hub.stagingRoot,
      hub: hub.words,
      number: hub.nextSessionNumber(),
      limits: { pendingMaxBytes: cache.pendingMaxBytes, overflow: cache.overflow },
      restore: createRestoreMemory(),
    });
    const hubPort = await hub.attachSession(memory);
    return new EngineStore(hub.dir, options, { hub, memory, session: attachSession(memory, registry.self), hubPort }, degraded);
  }

  /** For the engine's Worker; the port is transferred with it. */
  engineInit(): EngineStoreInit | null {
    if (this.#attached === null) return null;
    const { hub, memory, hubPort } = this.#attached;
    const { blockSize, restoreDeadlineMs, salt } = this.#options;
    return { memory, cacheDir: hub.dir, mode: hub.mode, hubPort, blockSize, restoreDeadlineMs, salt };
  }

  bind(requestIdOf: (requestNo: number) => string, emit: Emit): void {
    this.#requestIdOf = requestIdOf;
    this.#emit = emit;
  }

  /** Tells what was wrong from the start. */
  announce(): void {
    for (const event of this.#early.splice(0)) this.#emit('degraded', event);
  }

  /** Sessions whose locks `diagnose()` shows. */
  get sessions(): readonly Session[] {
    return this.#attached === null ? [] : [this.#attached.session];
  }

  persistence(): Health['persistence'] {
    if (this.#attached === null || this.#options.persist === 'off') return 'off';
    return this.#lost ? 'degraded' : this.#attached.hub.persistence;
  }

  stats(): StoreStats {
    if (this.#attached === null) {
      const none = { captured: 0, coalesced: 0, written: 0, durable: 0, superseded: 0, evicted: 0, dropped: {}, failed: 0, pending: 0 };
      return { boundaries: none, pendingBytes: 0, peakPendingBytes: 0, backpressureMs: 0, bytesWritten: 0 };
    }
    const { ledger, pending } = this.#attached.session;
    return {
      boundaries: ledger.read(),
      pendingBytes: pending.held,
      peakPendingBytes: pending.peak,
      backpressureMs: pending.backpressureMs,
      bytesWritten: pending.bytesWritten,
    };
  }

  /** Until nothing accepted is on its way, or the time has passed. */
  async flush(deadlineMs: number): Promise<void> {
    if (this.#attached === null || this.#detached) return;
    const { hub, session } = this.#attached;
    const deadline = performance.now() + deadlineMs;
    hub.ref();
    try {
      while (session.state !== 'failed' && session.itemsInFlight > 0 && performance.now() < deadline) {
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
      // Events of what just ended are on their way through the keeper.
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    } finally {
      hub.unref();
    }
  }

  /** The engine thread is gone: what it had queued is still written, nothing more is accepted. */
  engineDied(): void {
    void this.#detach(60_000);
  }

  async close(deadlineMs: number): Promise<CloseReport> {
    if (this.#attached === null) return { durable: 0, lost: 0 };
    const { hub, session } = this.#attached;
    const before = session.ledger.read().durable;
    await this.#detach(deadlineMs);
    await hub.release(deadlineMs);
    hub.off('store', this.#onStore);
    hub.off('lost', this.#onLost);
    const { durable, pending, written } = session.ledger.read();
    return { durable: durable - before, lost: pending + written };
  }

  async #detach(deadlineMs: number): Promise<void> {
    if (this.#detached || this.#attached === null) return;
    this.#detached = true;
    await this.#attached.hub.detachSession(this.#attached.memory.number, deadlineMs);
  }

  readonly #onStore = (event: StoreEvent): void => {
    if ('session' in event && event.session !== this.#attached?.memory.number) return;
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

/** The smaller of 20 GB and 10 % of what is free where the folder is or will be. */
async function defaultMaxBytes(dir: string): Promise<number> {
  for (let at = dir; ; ) {
    try {
      const { bavail, bsize } = await statfs(at);
      return Math.max(1024 * 1024, Math.min(20 * GB, Math.floor((bavail * bsize) / 10)));
    } catch (error) {
      const parent = at.replace(/\/+[^/]*\/*$/, '') || '/';
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || parent === at) return 20 * GB;
      at = parent;
    }
  }
}
