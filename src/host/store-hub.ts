/**
 * The store of one cache folder as the main thread sees it: the folder's lock, the keeper, the sessions. All engines of the
 * process on one folder share it.
 *
 * The main thread never blocks here: it writes words, posts messages and waits for promises. The keeper does not keep the
 * process alive by itself; only `ref` does, and every call that waits holds one.
 *
 * The lock is held until writer and store worker are gone. When one of them sits in a system call and cannot be ended, it is
 * never given up: another process must not write beside a thread that may yet wake up.
 */
import { EventEmitter } from 'node:events';
import type { MessagePort } from 'node:worker_threads';
import { MessageChannel } from 'node:worker_threads';
import { type ErrorCode, TidemarkError } from '../shared/errors.ts';
import type { StoreEvent } from '../shared/events.ts';
import { HubControl } from '../shared/loop-control.ts';
import type { Session, SessionMemory } from '../shared/session/index.ts';
import { stagingRootOf } from '../shared/staging.ts';
import type { StoreMode } from '../shared/worker-init.ts';
import type { Degradation, FolderLock } from './folder-lock.ts';
import { lockFolder, prepareFolder, unlockFolder } from './folder-lock.ts';
import { HubSessions } from './hub-sessions.ts';
import { KeeperLink } from './keeper-link.ts';
import type { FromKeeper, KeeperReport, KeeperTuning, LostSession } from './keeper-protocol.ts';
import { DEFAULT_TUNING } from './keeper-protocol.ts';
import { Problems } from './problems.ts';
import type { ProcessRegistry } from './process-registry.ts';

export interface StoreHubOptions {
  dir: string;
  maxBytes: number;
  blockSize: number;
  tuning?: Partial<KeeperTuning>;
}

/** Events kept for the first listener. */
const UNHEARD_MAX = 100;

/** `hub` is null when the folder cannot be used at all; `degraded` says what does not work, once per opening. */
export interface HubOpening {
  readonly hub: StoreHub | null;
  readonly degraded: Degradation | null;
}

export interface StoreHubEvents {
  store: [event: StoreEvent];
  /** A session was closed because a thread died with one of its locks: make a new one. */
  lost: [session: LostSession];
  /** Node's own: a listener is about to be added. */
  newListener: [name: string | symbol];
}

/**
 * Opens the store of a folder, or gives back the one that this process has already opened there (its limits stay).
 * Never rejects for what is wrong with the folder: that is a `degraded`, and the engine works without.
 */
export async function openStoreHub(registry: ProcessRegistry, options: StoreHubOptions): Promise<HubOpening> {
  const folder = await prepareFolder(options.dir);
  if (folder.path === null) return { hub: null, degraded: folder.degraded };
  const { path } = folder;
  for (;;) {
    const entry = registry.hubs.get(path);
    if (entry === undefined) break;
    const hub = await entry.hub;
    if (hub.closing === null) {
      entry.references++;
      return { hub, degraded: hub.degraded ?? hub.problem };
    }
    await hub.closing;
    // Stuck threads keep the entry's lock; the folder is then opened beside it, for reading.
    if (registry.hubs.get(path) === entry) registry.hubs.delete(path);
  }
  const hub = new StoreHub(registry, path, lockFolder(path), options);
  registry.hubs.set(path, { hub: Promise.resolve(hub), references: 1 });
  return { hub, degraded: hub.degraded };
}

export class StoreHub extends EventEmitter<StoreHubEvents> {
  /** Real path of the cache folder. */
  readonly dir: string;
  readonly stagingRoot: string;
  readonly mode: StoreMode;
  /** What is wrong with the folder, or null. */
  readonly degraded: Degradation | null;
  /** Words of both loops, for `createSessionMemory`. */
  readonly words: SharedArrayBuffer = HubControl.create();
  readonly control: HubControl = new HubControl(this.words);
  /** Settles when a close that has begun is over; null while the hub is open. */
  closing: Promise<KeeperReport> | null = null;
  readonly #registry: ProcessRegistry;
  readonly #tuning: KeeperTuning;
  readonly #lock: FolderLock;
  readonly #keeper: KeeperLink;
  readonly #sessions: HubSessions;
  /** Degradations that have not been taken back. */
  readonly #problems = new Problems();
  /** Events of the time before anybody listened. */
  #unheard: StoreEvent[] = [];
  #nextSession = 1;
  #deaths = 0;
  #keeperDied = false;
  #report: KeeperReport | null = null;

  constructor(registry: ProcessRegistry, dir: string, lock: FolderLock, options: StoreHubOptions) {
    super();
    // Some for each engine on the folder; however many there are, it is no leak.
    this.setMaxListeners(0);
    this.dir = dir;
    this.stagingRoot = stagingRootOf(dir);
    this.mode = lock.mode;
    this.degraded = lock.degraded;
    this.#registry = registry;
    this.#tuning = { ...DEFAULT_TUNING, ...options.tuning };
    this.#lock = lock;
    this.#sessions = new HubSessions(this.stagingRoot, registry.self);
    this.#keeper = new KeeperLink({
      init: {
        shared: registry.shared,
        hub: this.words,
        cacheDir: dir,
        stagingRoot: this.stagingRoot,
        mode: lock.mode,
        maxBytes: options.maxBytes,
        blockSize: options.blockSize,
        tuning: this.#tuning,
      },
      onMessage: (message) => this.#told(message),
      onEnd: (error, threadId) => this.#keeperEnded(error, threadId),
    });
    this.on('newListener', (name) => {
      // The listener is added after this call.
      if (name === 'store') process.nextTick(() => this.#tellUnheard());
    });
    registry.running.add(this);
  }

  #tellUnheard(): void {
    for (const event of this.#unheard.splice(0)) this.emit('store', event);
  }

  /** One degradation that still holds, for those who open the hub later. */
  get problem(): Degradation | null {
    return this.#problems.first;
  }

  /** A number for a new session of this hub. */
  nextSessionNumber(): number {
    return this.#nextSession++;
  }

  /**
   * Gives a session to both loops; resolves when they serve it, with the port through which its engine posts `HubMail`
   * (to be transferred to the engine thread). In writer mode its staging folder and lock are made first.
   * @throws STORE_CLOSED; STORE_WORKER_DIED when the loops do not get to run.
   */
  async attachSession(memory: SessionMemory): Promise<MessagePort> {
    if (this.closing !== null) throw new TidemarkError('STORE_CLOSED', `The store of '${this.dir}' is closed. Open it again.`);
    try {
      this.#sessions.add(memory, this.mode === 'writer');
    } catch (error) {
      // Folders are made again when there is something to write; what is wrong then shows with the boundary that fails.
      const message = `Staging cannot be prepared: ${(error as Error).message}`;
      this.#event({ type: 'note', code: 'CACHE_IO', message, details: { path: this.stagingRoot } });
    }
    const { port1, port2 } = new MessageChannel();
    const { attachMs } = this.#tuning;
    const attached = await this.#keeper.ask({ type: 'attach', memory, port: port2 }, `attached ${memory.number}`, [port2], attachMs);
    if (attached) return port1;
    port1.close();
    const why = this.problem?.message ?? 'They gave no sign of life.';
    throw new TidemarkError('STORE_WORKER_DIED', `The store's threads did not start within ${attachMs} ms. ${why}`, { details: { path: this.dir } });
  }

  /**
   * Closes a session, has what it queued finished, and forgets it. False when that took longer than `deadlineMs`: then its
   * folder stays until the next start.
   */
  async detachSession(number: number, deadlineMs: number): Promise<boolean> {
    const session = this.#sessions.get(number);
    if (session === undefined) return true;
    session.close();
    if (this.closing === null) {
      const done = await this.#keeper.ask({ type: 'detach', session: number }, `detached ${number}`, [], deadlineMs);
      if (!done) return false;
      await this.#removeSession(number);
    }
    return true;
  }

  async #removeSession(number: number): Promise<void> {
    const error = await this.#sessions.remove(number);
    if (error === null) return;
    const message = `What a session had staged could not be removed (${error.message}). The next start removes it.`;
    this.#event({ type: 'note', code: 'CACHE_IO', message, details: { path: this.stagingRoot } });
  }

  /** Whether any session has accepted bytes that have not reached their end. */
  get pending(): boolean {
    return this.#sessions.pending;
  }

  get persistence(): 'on' | 'read-only' | 'degraded' {
    if (this.mode === 'read-only') return 'read-only';
    return this.#problems.first !== null ? 'degraded' : 'on';
  }

  /** Main's objects over the sessions' memory, for figures and `diagnose()`. */
  get sessions(): Session[] {
    return this.#sessions.all;
  }

  /** Keeps the process alive until the matching `unref`. */
  ref(): void {
    this.#keeper.ref();
  }

  unref(): void {
    this.#keeper.unref();
  }

  /**
   * Gives back one opening. The last one drains and ends both loops and gives up the folder's lock; `deadlineMs` is how long
   * draining may go on without progress.
   */
  async release(deadlineMs: number): Promise<KeeperReport> {
    const entry = this.#registry.hubs.get(this.dir);
    if (this.closing === null && entry !== undefined && --entry.references > 0) return { drained: true, stuck: [] };
    this.closing ??= this.#close(deadlineMs);
    return this.closing;
  }

  async #close(deadlineMs: number): Promise<KeeperReport> {
    const { absoluteMs, stopMs, terminateMs } = this.#tuning;
    for (const session of this.#sessions.all) session.close();
    // The keeper bounds both loops; this bound is for a keeper that does not answer.
    const limit = 2 * (Math.max(deadlineMs, absoluteMs) + stopMs + terminateMs) + 5_000;
    await this.#keeper.ask({ type: 'close', deadlineMs }, 'closed', [], limit);
    const report = this.#report ?? { drained: false, stuck: ['keeper'] };
    if (report.stuck.length === 0) {
      await this.#keeper.ended();
      for (const { number } of this.#sessions.all) await this.#removeSession(number);
      unlockFolder(this.#lock);
    } else {
      for (const name of report.stuck) this.#registry.stuck.add(`${name} of ${this.dir}`);
      this.#sessions.abandon();
    }
    this.#registry.hubs.delete(this.dir);
    this.#registry.running.delete(this);
    return report;
  }

  #told(message: FromKeeper): void {
    switch (message.type) {
      case 'attached':
      case 'detached':
        this.#keeper.answer(`${message.type} ${message.session}`);
        break;
      case 'ready':
        this.#keeperRecovered();
        break;
      case 'closed':
        this.#report = message.report;
        this.#keeper.answer('closed');
        break;
      case 'lost':
        this.emit('lost', message);
        break;
      case 'store-event':
        this.#event(message.event, message.from);
        break;
      case 'idle':
        break;
    }
  }

  #event(event: StoreEvent, from = 'hub'): void {
    if (event.type === 'degraded' && !this.#problems.begin(from, event)) return;
    if (event.type === 'recovered') {
      if (!this.#problems.end(from, event.code)) return;
      // A loop that was replaced has forgotten what it had reported; if it still holds, it will be found again.
      if (event.code === 'WRITER_DIED' || event.code === 'STORE_WORKER_DIED') {
        for (const code of this.#problems.endAll(from)) this.#event({ type: 'recovered', code: code as ErrorCode, message: event.message });
      }
    }
    if (!this.emit('store', event) && this.#unheard.length < UNHEARD_MAX) this.#unheard.push(event);
  }

  /** The keeper died, and both loops with it: a new one is made and given the sessions that have lost no lock. */
  #keeperEnded(failure: Error | null, threadId: number): void {
    this.#registry.threads.markWorkerDead(threadId);
    if (this.closing !== null) {
      if (this.#report === null) this.#report = { drained: false, stuck: [] };
      this.#keeper.answer('closed');
      return;
    }
    const { backOffMs } = this.#tuning;
    if (!this.#keeperDied) {
      this.#keeperDied = true;
      const message = `The store's threads ended (${failure?.message ?? 'no error was given'}) and are being replaced.`;
      this.#event({ type: 'degraded', code: 'STORE_WORKER_DIED', message, details: { stack: failure?.stack } });
    }
    const wait = backOffMs[Math.min(this.#deaths++, backOffMs.length - 1)] ?? 0;
    const timer = setTimeout(() => this.#restart(), wait);
    if (!this.#keeper.isHeld) timer.unref();
  }

  #restart(): void {
    if (this.closing !== null) return;
    for (const lost of this.#sessions.failLost(this.#registry.threads)) this.emit('lost', lost);
    this.#keeper.start();
    for (const { memory, state } of this.#sessions.all) {
      if (state === 'failed') continue;
      // The engine's port ended with the old keeper: oversize buffers are refused from now on, all else works.
      const { port2 } = new MessageChannel();
      this.#keeper.send({ type: 'attach', memory, port: port2 }, [port2]);
    }
  }

  #keeperRecovered(): void {
    if (!this.#keeperDied) return;
    this.#keeperDied = false;
    this.#event({ type: 'recovered', code: 'STORE_WORKER_DIED', message: "The store's threads are running again." });
  }
}
