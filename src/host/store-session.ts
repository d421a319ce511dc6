/**
 * One session with the store of a cache folder, as main sees it: opening, figures, draining, closing. Engines and
 * `tidemark/store` are built on it. Main thread: waits are promises, no lock is taken.
 */
import { statfs } from 'node:fs/promises';
import type { MessagePort } from 'node:worker_threads';
import { createRestoreMemory } from '../shared/blocks/restore-channel.ts';
import { TidemarkError } from '../shared/errors.ts';
import type { StoreEvent } from '../shared/events.ts';
import {
  attachSession,
  createSessionMemory,
  type LedgerFigures,
  type Session,
  type SessionLimits,
  type SessionMemory,
  sumOfStates,
} from '../shared/session/index.ts';
import type { CloseReport } from './api.ts';
import type { Degradation } from './folder-lock.ts';
import type { ProcessRegistry } from './process-registry.ts';
import type { StoreFigures } from './store-figures.ts';
import { openStoreHub, type StoreHub } from './store-hub.ts';

const GB = 1_000_000_000;
const POLL_MS = 10;
const EVENTS_MS = 1_000;
const CLOSE_MS = 1_000;

export interface StoreSessionOptions {
  dir: string;
  /** null: the smaller of 20 GB and 10 % of what is free. */
  maxBytes: number | null;
  blockSize: number;
  limits: Partial<SessionLimits>;
}

export class StoreSession {
  readonly hub: StoreHub;
  readonly memory: SessionMemory;
  /** To be transferred to the thread that uses the session. */
  readonly hubPort: MessagePort;
  readonly session: Session;
  #detached: Promise<boolean> | null = null;
  #durableSeen = 0;

  private constructor(hub: StoreHub, memory: SessionMemory, hubPort: MessagePort, session: Session) {
    this.hub = hub;
    this.memory = memory;
    this.hubPort = hubPort;
    this.session = session;
    hub.on('store', this.#count);
  }

  /** `session` is null when the folder cannot be used at all; `degraded` says what does not work. */
  static async open(registry: ProcessRegistry, options: StoreSessionOptions): Promise<{ session: StoreSession | null; degraded: Degradation | null }> {
    const { dir, blockSize, limits } = options;
    const { hub, degraded } = await openStoreHub(registry, { dir, maxBytes: options.maxBytes ?? (await defaultMaxBytes(dir)), blockSize });
    if (hub === null) return { session: null, degraded };
    const memory = createSessionMemory({
      stagingRoot: hub.stagingRoot,
      hub: hub.words,
      number: hub.nextSessionNumber(),
      limits,
      restore: createRestoreMemory(),
    });
    let hubPort: MessagePort;
    try {
      hubPort = await hub.attachSession(memory);
    } catch (error) {
      // The store's threads do not run here. That is no reason to have no engine.
      await hub.release(CLOSE_MS);
      const { code, message, details } = error instanceof TidemarkError ? error : new TidemarkError('STORE_WORKER_DIED', String(error));
      return { session: null, degraded: { code, message, details } };
    }
    return { session: new StoreSession(hub, memory, hubPort, attachSession(memory, registry.self)), degraded };
  }

  figures(): StoreFigures {
    const { ledger, pending } = this.session;
    return {
      boundaries: ledger.read(),
      pendingBytes: pending.held,
      peakPendingBytes: pending.peak,
      backpressureMs: pending.backpressureMs,
      bytesWritten: pending.bytesWritten,
      codecFallbacks: this.session.codecFallbacks,
    };
  }

  /** Until nothing accepted is on its way, or the time has passed. */
  async flush(deadlineMs: number): Promise<void> {
    if (this.#detached !== null) return;
    const { hub, session } = this;
    const deadline = performance.now() + deadlineMs;
    hub.ref();
    try {
      while (session.state !== 'failed' && session.itemsInFlight > 0 && performance.now() < deadline) {
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
      // Events of what just ended are still on their way through the keeper; they are a courtesy, so the wait for them is short.
      const courtesy = performance.now() + EVENTS_MS;
      while (this.#durableSeen < session.ledger.read().durable && performance.now() < courtesy) {
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
    } finally {
      hub.unref();
    }
  }

  /** Nothing more is accepted; what was is still written. */
  detach(deadlineMs: number): Promise<boolean> {
    this.#detached ??= this.hub.detachSession(this.memory.number, deadlineMs);
    return this.#detached;
  }

  async close(deadlineMs: number): Promise<CloseReport> {
    const before = this.session.ledger.read().durable;
    await this.detach(deadlineMs);
    await this.hub.release(deadlineMs);
    this.hub.off('store', this.#count);
    const figures = this.session.ledger.read();
    if (process.env.NODE_ENV === 'test') assertSum(figures);
    const { durable, pending, written } = figures;
    return { durable: durable - before, lost: pending + written };
  }

  /** True for events of this session and for those of the whole folder. */
  concerns(event: StoreEvent): boolean {
    return !('session' in event) || event.session === this.memory.number;
  }

  readonly #count = (event: StoreEvent): void => {
    if (event.type === 'durable' && this.concerns(event)) this.#durableSeen++;
  };
}

/** Each boundary has one current state: a sum that is off is a fault of ours, and a test run must not pass over it. */
function assertSum(figures: LedgerFigures): void {
  const sum = sumOfStates(figures);
  if (sum === figures.captured) return;
  throw new Error(`the ledger is wrong: ${figures.captured} boundaries were captured, its states add up to ${sum}: ${JSON.stringify(figures)}`);
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
