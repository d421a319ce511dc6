/**
 * A session: one engine's shared memory towards the store (queue, arena, registry, ledger, locks), and one thread's objects
 * over it.
 *
 * The main thread creates the memory and gives it to the engine thread, the snapshot writer and the store worker; each calls
 * `attachSession` with its own thread handle. The main thread may attach too: it reads figures and closes, and takes no lock.
 */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { createRestoreMemory } from '../blocks/restore-channel.ts';
import type { Doorbell } from '../doorbell.ts';
import { TidemarkError } from '../errors.ts';
import { HubControl } from '../loop-control.ts';
import { DescriptorRing } from '../ring.ts';
import { isSessionId } from '../staging.ts';
import type { Condition } from '../sync/condition.ts';
import { type LockInfo, LockTable } from '../sync/lock-table.ts';
import type { TimedMutex } from '../sync/mutex.ts';
import type { ThreadHandle, ThreadTable } from '../sync/thread-table.ts';
import { withLock } from '../sync/with-lock.ts';
import type { HubMail } from '../worker-init.ts';
import { ItemSpace } from './item-space.ts';
import { ItemTable } from './item-table.ts';
import { LOCK_SPECS, SESSION_MAGIC, SESSION_STATES, type SessionLayout, type SessionState, sessionLayout, WORD } from './layout.ts';
import type { LeaseAccess } from './leases.ts';
import { Ledger } from './ledger.ts';
import { resolveLimits, type SessionLimits } from './limits.ts';
import { OversizeBuffers } from './oversize.ts';
import { PagePool } from './page-pool.ts';
import { PENDING_FIGURES, PendingBytes } from './pending.ts';
import { Registry } from './registry.ts';

/** What crosses threads: give it to `attachSession` there. */
export interface SessionMemory {
  /** Names the staging folder. Never used again, so that liveness by lock file cannot be mistaken. */
  readonly id: string;
  /** Names the session in messages and events. */
  readonly number: number;
  readonly limits: SessionLimits;
  readonly control: SharedArrayBuffer;
  readonly arena: SharedArrayBuffer;
  /** Region that restores are read into; its inside belongs to the block store. */
  readonly restore: SharedArrayBuffer;
  /** The cache folder's loop words (`HubControl`): the session rings both loops. */
  readonly hub: SharedArrayBuffer;
  /** <cacheDir>/_boundary_snapshots/<id> */
  readonly stagingDir: string;
}

export interface SessionMemoryOptions {
  /** <cacheDir>/_boundary_snapshots */
  stagingRoot: string;
  hub: SharedArrayBuffer;
  number: number;
  limits?: Partial<SessionLimits>;
  restore?: SharedArrayBuffer;
  /** Default: a new UUID. */
  id?: string;
}

/** Makes the memory. Address space only: pages get memory when they are first written. */
export function createSessionMemory(options: SessionMemoryOptions): SessionMemory {
  const limits = resolveLimits(options.limits);
  const layout = sessionLayout(limits);
  const control = new SharedArrayBuffer(layout.bytes);
  const words = new Int32Array(control, 0, layout.words);
  PagePool.initialize(words.subarray(layout.pages), layout.pageCount);
  Atomics.store(words, WORD.magic, SESSION_MAGIC);
  const id = options.id ?? randomUUID();
  if (!isSessionId(id)) throw new TidemarkError('INVALID_ARGUMENT', `a session id is 1 to 64 letters, digits, '-' and '_', got '${id}'`);
  return {
    id,
    number: options.number,
    limits,
    control,
    arena: new SharedArrayBuffer(layout.pageCount * limits.pageBytes),
    restore: options.restore ?? createRestoreMemory(),
    hub: options.hub,
    stagingDir: join(options.stagingRoot, id),
  };
}

export interface AttachOptions {
  /** Carries oversize buffers to the loops; without it oversize items are refused. Needed by the engine thread only. */
  post?: (mail: HubMail) => void;
}

/**
 * Locks of rank 2 to 4 are held for microseconds, and a dead owner is noticed at once: a wait this long means that a thread
 * does not get to run at all.
 */
const SETTLE_MS = 30_000;

export interface SessionLocks {
  readonly writerBusy: TimedMutex;
  readonly pending: TimedMutex;
  readonly registry: TimedMutex;
  readonly cancelled: TimedMutex;
}

export class Session {
  readonly id: string;
  readonly number: number;
  readonly memory: SessionMemory;
  readonly limits: SessionLimits;
  readonly layout: SessionLayout;
  readonly self: ThreadHandle;
  readonly locks: SessionLocks;
  readonly pendingCond: Condition;
  readonly pending: PendingBytes;
  readonly items: ItemTable;
  readonly space: ItemSpace;
  readonly pages: PagePool;
  readonly registry: Registry;
  readonly ledger: Ledger;
  readonly oversize: OversizeBuffers;
  readonly writerRing: DescriptorRing;
  readonly unitRing: DescriptorRing;
  readonly writerBell: Doorbell;
  readonly storeBell: Doorbell;
  /** How this thread copies out of leases; null where it has no business with them. */
  leases: LeaseAccess | null = null;
  readonly #words: Int32Array;
  readonly #lockTable: LockTable;

  constructor(memory: SessionMemory, self: ThreadHandle, options: AttachOptions) {
    const { limits } = memory;
    const layout = sessionLayout(limits);
    const words = new Int32Array(memory.control, 0, layout.words);
    if (words[WORD.magic] !== SESSION_MAGIC) throw new TidemarkError('INVALID_ARGUMENT', 'this is no session memory; make one with createSessionMemory()');
    this.id = memory.id;
    this.number = memory.number;
    this.memory = memory;
    this.limits = limits;
    this.layout = layout;
    this.self = self;
    this.#words = words;
    this.#lockTable = new LockTable(words, layout.locks, LOCK_SPECS);
    const mutex = (name: string) => this.#lockTable.mutex(name, self);
    this.locks = { writerBusy: mutex('writerBusy'), pending: mutex('pending'), registry: mutex('registry'), cancelled: mutex('cancelled') };
    this.pendingCond = this.#lockTable.condition('pendingCond', this.locks.pending);
    const figures = new BigInt64Array(memory.control, layout.words * 4, PENDING_FIGURES);
    this.pending = new PendingBytes(this, figures);
    this.items = new ItemTable(words.subarray(layout.items, layout.items + ItemTable.wordsFor(layout.itemCount)), layout.itemCount);
    this.pages = new PagePool(words.subarray(layout.pages, layout.pages + PagePool.wordsFor(layout.pageCount)), memory.arena, limits.pageBytes);
    this.registry = new Registry(words.subarray(layout.registry, layout.registry + Registry.wordsFor(limits.registryCapacity)), limits.registryCapacity);
    this.ledger = new Ledger(words.subarray(layout.ledger, layout.ledger + Ledger.WORDS));
    this.oversize = new OversizeBuffers(memory.number, this.items, options.post ?? null);
    this.space = new ItemSpace(this.items, this.pages, this.pending, this.oversize, layout, limits);
    const loops = new HubControl(memory.hub);
    this.writerBell = loops.writer.bell;
    this.storeBell = loops.store.bell;
    // The bells are rung by whoever pushes, once the lock is released: a consumer that wakes must not meet the lock held.
    this.writerRing = new DescriptorRing(words, layout.writerRing, layout.writerRingCapacity);
    this.unitRing = new DescriptorRing(words, layout.unitRing, layout.unitRingCapacity);
  }

  get state(): SessionState {
    return SESSION_STATES[Atomics.load(this.#words, WORD.state)]!;
  }

  /** Runs `fn` under `pending`. No file operation and no wait but `pendingCond` inside. */
  underPending<T>(site: string, fn: () => T, timeoutMs = this.limits.lockWaitMs): T {
    return withLock(this.locks.pending, timeoutMs, site, fn);
  }

  /** As `underPending`, for what must not be left undone because a thread is slow: it gives back what somebody else needs. */
  settlePending<T>(site: string, fn: () => T): T {
    return this.underPending(site, fn, SETTLE_MS);
  }

  underRegistry<T>(site: string, fn: () => T, timeoutMs = this.limits.lockWaitMs): T {
    return withLock(this.locks.registry, timeoutMs, site, fn);
  }

  settleRegistry<T>(site: string, fn: () => T): T {
    return this.underRegistry(site, fn, SETTLE_MS);
  }

  /** pending → registry → cancelled, for what must change together and must not be left undone. */
  settleAll<T>(site: string, fn: () => T): T {
    const { registry, cancelled } = this.locks;
    return this.settlePending(site, () => withLock(registry, SETTLE_MS, site, () => withLock(cancelled, SETTLE_MS, site, fn)));
  }

  /** From now on everything is refused; what was accepted is still written. Any thread, no lock. */
  close(): void {
    Atomics.compareExchange(this.#words, WORD.state, SESSION_STATES.indexOf('open'), SESSION_STATES.indexOf('closed'));
    this.#wakeAll();
  }

  /** A lock of this session is lost with its owner: nothing more can be settled. What was pending ends as failed. Any thread, no lock. */
  fail(): number {
    const failed = SESSION_STATES.indexOf('failed');
    if (Atomics.exchange(this.#words, WORD.state, failed) === failed) return 0;
    const count = this.ledger.failPending();
    this.#wakeAll();
    return count;
  }

  /**
   * Runs `fn`; when a lock of this session is not to be had, gives `fallback` instead. A lock whose owner died fails the
   * session: that is noticed here, reported through its state, and is no reason to end whatever the caller does besides.
   */
  guarded<T>(fn: () => T, fallback: (error: TidemarkError) => T): T {
    try {
      return fn();
    } catch (error) {
      if (!(error instanceof TidemarkError) || (error.code !== 'LOCK_OWNER_DIED' && error.code !== 'LOCK_TIMEOUT')) throw error;
      if (error.code === 'LOCK_OWNER_DIED') this.fail();
      return fallback(error);
    }
  }

  #wakeAll(): void {
    this.pendingCond.broadcast();
    this.writerBell.ring();
    this.storeBell.ring();
  }

  /** Items that were handed over and have not ended: 0 when writer and store worker have ended everything accepted. No lock. */
  get itemsInFlight(): number {
    let count = 0;
    for (let item = 0; item < this.items.count; item++) if (this.items.isAccepted(item)) count++;
    return count;
  }

  /** The writer announces itself, so that waiters know when it is gone. */
  serveAsWriter(): void {
    Atomics.store(this.#words, WORD.writer, this.self.token);
  }

  /** False when the writer thread has ended and no new one has announced itself. */
  get writerIsAlive(): boolean {
    const token = Atomics.load(this.#words, WORD.writer);
    return token === 0 || !this.self.table.isDead(token);
  }

  /** Counts what a state codec could not do. */
  countCodec(what: 'fallback' | 'refused'): void {
    Atomics.add(this.#words, what === 'fallback' ? WORD.codecFallbacks : WORD.codecRefused, 1);
  }

  get codecFallbacks(): number {
    return Atomics.load(this.#words, WORD.codecFallbacks);
  }

  get codecRefused(): number {
    return Atomics.load(this.#words, WORD.codecRefused);
  }

  get condemned(): number {
    return Atomics.load(this.#words, WORD.condemned);
  }

  addCondemned(count: number): void {
    Atomics.add(this.#words, WORD.condemned, count);
  }

  /** A staged file appeared, or will not: whoever set a unit aside looks again. */
  stagedChanged(): void {
    Atomics.add(this.#words, WORD.staged, 1);
    this.storeBell.ring();
  }

  /** Changes whenever `stagedChanged` was called. */
  get stagedSequence(): number {
    return Atomics.load(this.#words, WORD.staged);
  }

  readLocks(threads: ThreadTable): LockInfo[] {
    return this.#lockTable.readAll(threads);
  }
}

/** This thread's objects over a session's memory. */
export function attachSession(memory: SessionMemory, self: ThreadHandle, options: AttachOptions = {}): Session {
  return new Session(memory, self, options);
}
