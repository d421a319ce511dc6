/** The main thread's side of `tidemark/store`: opens a folder, gives a ticket to a worker, hears what becomes durable. */
import { EventEmitter } from 'node:events';
import { isMainThread, type MessagePort } from 'node:worker_threads';
import { TidemarkError } from '../shared/errors.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { StoreTicket } from '../store-client/store-client.ts';
import type { CloseReport } from './api.ts';
import type { Degradation } from './folder-lock.ts';
import { processRegistry } from './process-registry.ts';
import type { StoreFigures } from './store-figures.ts';
import { StoreSession } from './store-session.ts';
import { integer, invalid } from './validate.ts';

export interface StoreOptions {
  dir: string;
  /** Limit for everything under `dir`. Default: the smaller of 20 GB and 10 % of what is free. */
  maxBytes?: number;
  /** Tokens per block, 16 to 4096. Default 256. */
  blockSize?: number;
  /** Names what the arrays mean: blocks are found only under the fingerprint they were put with. */
  fingerprint: string;
  /** Further keys of the blocks' identity, e.g. a tenant's salt. */
  extraKeys?: readonly string[];
  pendingMaxBytes?: number;
}

export interface StoreEvents {
  durable: [event: { tokenCount: number; block: string }];
  degraded: [event: Degradation];
  recovered: [event: { code: string; message: string }];
}

/**
 * Opens the store of a folder on the main thread.
 *
 * Rejects with NOT_MAIN_THREAD, INVALID_ARGUMENT, or CACHE_DIR_UNUSABLE when the folder cannot be used at all.
 */
export async function openStore(options: StoreOptions): Promise<Store> {
  if (!isMainThread)
    throw new TidemarkError('NOT_MAIN_THREAD', 'openStore was called in a Worker. Call it on the main thread and give the ticket to the Worker.');
  if (typeof options?.dir !== 'string' || options.dir === '') throw invalid('options.dir', 'the path of a folder', options?.dir);
  if (typeof options.fingerprint !== 'string' || options.fingerprint === '') throw invalid('options.fingerprint', 'a non-empty string', options.fingerprint);
  const blockSize = integer('options.blockSize', options.blockSize ?? 256, 16, 4096);
  const pendingMaxBytes = integer('options.pendingMaxBytes', options.pendingMaxBytes ?? 512 * 1024 * 1024, 1024 * 1024, 2 ** 36);
  const maxBytes = options.maxBytes === undefined ? null : integer('options.maxBytes', options.maxBytes, 1024 * 1024, Number.MAX_SAFE_INTEGER);
  const registry = processRegistry();
  const { session, degraded } = await StoreSession.open(registry, { dir: options.dir, maxBytes, blockSize, limits: { pendingMaxBytes } });
  if (session === null) throw new TidemarkError(degraded!.code, degraded!.message, { details: degraded!.details });
  const ticket: StoreTicket = {
    shared: registry.shared,
    memory: session.memory,
    hubPort: session.hubPort,
    mode: session.hub.mode,
    blockSize,
    fingerprint: options.fingerprint,
    extraKeys: options.extraKeys ?? [],
  };
  return new Store(session, ticket, degraded);
}

export class Store extends EventEmitter<StoreEvents> {
  readonly dir: string;
  readonly mode: 'writer' | 'read-only';
  /** What works less than it should, or null. */
  readonly degraded: Degradation | null;
  readonly #session: StoreSession;
  #ticket: StoreTicket | null;
  #closing: Promise<CloseReport> | null = null;

  /** @internal Use `openStore`. */
  constructor(session: StoreSession, ticket: StoreTicket, degraded: Degradation | null) {
    super();
    this.dir = session.hub.dir;
    this.mode = session.hub.mode;
    this.degraded = degraded;
    this.#session = session;
    this.#ticket = ticket;
    session.hub.on('store', this.#onStore);
  }

  /** For one worker: `worker.postMessage(ticket, transfer)`. There is one ticket, since a session belongs to one thread. */
  ticket(): { ticket: StoreTicket; transfer: MessagePort[] } {
    const ticket = this.#ticket;
    if (ticket === null)
      throw new TidemarkError('INVALID_ARGUMENT', 'This store has given its ticket away. Open the folder again for another worker; both share one store.');
    this.#ticket = null;
    return { ticket, transfer: [ticket.hubPort] };
  }

  /** Figures from shared memory, at any time. */
  stats(): StoreFigures {
    return this.#session.figures();
  }

  /** Resolves when everything accepted so far is durable or has failed. */
  flush(options: { deadlineMs?: number } = {}): Promise<void> {
    return this.#session.flush(options.deadlineMs ?? 60_000);
  }

  /** Drains what was accepted and gives the folder up. */
  close(options: { deadlineMs?: number } = {}): Promise<CloseReport> {
    this.#closing ??= this.#session.close(options.deadlineMs ?? 60_000).finally(() => this.#session.hub.off('store', this.#onStore));
    return this.#closing;
  }

  readonly #onStore = (event: StoreEvent): void => {
    if (!this.#session.concerns(event)) return;
    if (event.type === 'durable') this.emit('durable', { tokenCount: event.tokenCount, block: event.block });
    if (event.type === 'degraded') this.emit('degraded', { code: event.code, message: event.message, details: event.details });
    if (event.type === 'recovered') this.emit('recovered', { code: event.code, message: event.message });
  };
}
