/**
 * A store with its real writer thread, in a temporary cache folder, with limits in milliseconds and a gate in the file layer.
 *
 * `store` lives in the test's own thread (which may block for milliseconds here, unlike an app's main thread); `actor` starts
 * further threads. `settled` waits until nothing is in flight and checks what must always hold then.
 */

import { MessageChannel, type Worker } from 'node:worker_threads';
import { expect } from 'vitest';
import { BoundarySnapshotStore, type StoreOptions } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { loadNativeCore } from '../../dist/shared/native-core.js';
import { createProcessShared, type ProcessShared } from '../../dist/shared/process-shared.js';
import { sumOfStates } from '../../dist/shared/session/ledger.js';
import type { SessionLimits } from '../../dist/shared/session/limits.js';
import { requestKey } from '../../dist/shared/session/request-key.js';
import { attachSession, createSessionMemory, type Session, type SessionMemory } from '../../dist/shared/session/session.js';
import { ensureStagingRoot, openSessionStaging, stagedPath, stagingRootOf } from '../../dist/shared/staging.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { dist } from '../helpers/paths.ts';
import { patience } from '../helpers/patience.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { startWorker } from '../helpers/worker.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { Gate } from './gate.mjs';

const core = loadNativeCore()!;

export const QUICK: Partial<SessionLimits> = {
  pendingMaxBytes: 1024 * 1024,
  pageBytes: 4096,
  reserveWaitMs: 200,
  inlineWriteLimitMs: 200,
  publishGraceMs: 20,
  // Long, so that a busy machine does not end a wait that is meant to succeed; tests of the limit itself set it.
  cleanupRequestWaitMs: 5000,
  cleanupAllWaitMs: 5000,
  takeWaitMs: 200,
};

export interface Boundary {
  type: string;
  session: number;
  tokenCount: number;
  [field: string]: unknown;
}

export class Actor {
  readonly worker: Worker;
  readonly #calls = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  #next = 1;

  constructor(worker: Worker) {
    this.worker = worker;
    worker.on('message', ({ id, value, error }) => {
      const call = this.#calls.get(id);
      this.#calls.delete(id);
      if (error !== undefined) call?.reject(Object.assign(new Error(error.message), error));
      else call?.resolve(value as never);
    });
    worker.on('exit', (code) => {
      for (const { reject } of this.#calls.values()) reject(new Error(`the thread has ended with ${code}`));
    });
  }

  call<T = never>(operation: string, ...args: unknown[]): Promise<T> {
    const id = this.#next++;
    return new Promise<T>((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
      this.worker.postMessage({ id, operation, args });
    });
  }

  ready(): Promise<void> {
    return new Promise((resolve, reject) => this.#calls.set(0, { resolve, reject }));
  }
}

export class StoreFixture {
  readonly cacheDir: string;
  readonly stagingRoot: string;
  readonly shared: ProcessShared;
  readonly hub: SharedArrayBuffer;
  readonly control: HubControl;
  readonly gate = new Gate();
  readonly events: Boundary[] = [];
  readonly memories: SessionMemory[] = [];
  memory!: SessionMemory;
  session!: Session;
  store!: BoundarySnapshotStore;
  writer: Worker | null = null;
  readonly #threadsLiveMs: number;
  #mailbox = new MessageChannel();
  readonly #locks: number[] = [];
  readonly #self;

  constructor(cacheDir = tempDir('boundary'), shared = createProcessShared(), threadsLiveMs = 20_000) {
    this.#threadsLiveMs = threadsLiveMs;
    this.cacheDir = cacheDir;
    this.stagingRoot = stagingRootOf(cacheDir);
    this.shared = shared;
    this.hub = HubControl.create();
    this.control = new HubControl(this.hub);
    this.#self = new ThreadTable(shared.threads).enter('engine', 'test', { mayBlock: true });
    ensureStagingRoot(this.stagingRoot, new Files());
  }

  /** A session and a store over it in this thread. */
  open(limits: Partial<SessionLimits> = {}, options: StoreOptions = {}): { session: Session; store: BoundarySnapshotStore; memory: SessionMemory } {
    const memory = createSessionMemory({ stagingRoot: this.stagingRoot, hub: this.hub, number: this.memories.length + 1, limits: { ...QUICK, ...limits } });
    this.memories.push(memory);
    // As the host does: without its lock the session would be one of the dead.
    const fd = openSessionStaging(this.stagingRoot, memory.id, new Files(), core);
    if (typeof fd !== 'number') throw new Error(fd.message);
    this.#locks.push(fd);
    const post = ({ message }: { message: unknown }) => this.#post(message);
    const session = attachSession(memory, this.#self, { post });
    const store = new BoundarySnapshotStore(session, { cleanupWaits: true, ...options });
    if (this.memory === undefined) {
      this.memory = memory;
      this.session = session;
      this.store = store;
    }
    if (this.writer !== null) this.#attach(memory);
    return { session, store, memory };
  }

  async startWriter(life = 1): Promise<void> {
    this.#mailbox = new MessageChannel();
    const events = new MessageChannel();
    this.events.length = 0;
    Atomics.store(new Int32Array(this.hub), STOP_WORD, 0);
    const init = {
      shared: this.shared,
      hub: this.hub,
      cacheDir: this.cacheDir,
      stagingRoot: this.stagingRoot,
      mode: 'writer',
      maxBytes: 2 ** 40,
      blockSize: 256,
      life,
      mailbox: this.#mailbox.port2,
      events: events.port2,
      faults: { module: new URL('./gate.mjs', import.meta.url).href, data: { gate: this.gate.buffer } },
    };
    this.writer = startWorker(dist('snapshot-writer/main'), {
      workerData: init,
      transferList: [this.#mailbox.port2, events.port2],
      timeoutMs: this.#threadsLiveMs,
    });
    this.writer.on('error', (error) => this.events.push({ type: 'error', session: 0, tokenCount: 0, error }));
    events.port1.on('message', (event) => this.events.push(event));
    events.port1.unref();
    await this.event('started');
    for (const memory of this.memories) this.#attach(memory);
    await until(() => this.events.filter((event) => event.type === 'attached').length >= this.memories.length, 'attached');
  }

  /** Another thread over the session. */
  async actor(kind = 'other', name = kind, options: { memory?: SessionMemory; gate?: Gate } = {}): Promise<Actor> {
    const workerData = { shared: this.shared, memory: options.memory ?? this.memory, kind, name, gate: options.gate?.buffer ?? null };
    const actor = new Actor(startWorker(new URL('./actor.mjs', import.meta.url), { workerData, timeoutMs: this.#threadsLiveMs }));
    await actor.ready();
    return actor;
  }

  /** Settles when the named thread waits for that lock or condition. */
  async waiting(thread: string, what: string): Promise<void> {
    const table = new ThreadTable(this.shared.threads);
    await until(() => table.list().some(({ name, wait }) => name === thread && wait?.name === what), `${thread} waits for ${what}`);
  }

  detach(session: Session): void {
    this.#post({ type: 'detach', session: session.number });
  }

  /** The first event of a type (about a boundary), now or later. */
  async event(type: string, tokenCount?: number): Promise<Boundary> {
    const find = () => this.events.find((event) => event.type === type && (tokenCount === undefined || event.tokenCount === tokenCount));
    await until(() => find() !== undefined, `event ${type} ${tokenCount ?? ''}`);
    return find()!;
  }

  /** Waits until nothing is in flight, then checks what must hold: no byte held, sums right, every file known. */
  async settled(session = this.session): Promise<void> {
    await until(() => session.itemsInFlight === 0 && session.condemned === 0, 'nothing in flight');
    expect(session.pending.held).toBe(0);
    const figures = session.ledger.read();
    expect(figures.pending).toBe(0);
    expect(sumOfStates(figures)).toBe(figures.captured);
    // The writer may just be touching a page ahead of need.
    await until(() => session.pages.inUse === 0, 'every page free');
    await until(() => this.files(session).filter((name) => name.endsWith('.safetensors')).length === session.registry.live, 'files equal registry');
    expect(this.files(session).filter((name) => name.includes('.tmp'))).toEqual([]);
  }

  /** Everything the writer has said about what is settled is in `events`: an event follows what it tells of, and comes by message. */
  async told(): Promise<void> {
    const before = this.#echoes();
    // Of a session that is not there the writer answers at once, behind all that it said before.
    this.#post({ type: 'detach', session: ECHO });
    await until(() => this.#echoes() > before, 'the writer to answer');
  }

  #echoes(): number {
    return this.events.filter(({ type, session }) => type === 'detached' && session === ECHO).length;
  }

  /** Everything in the session's staging folder. */
  files(session = this.session): string[] {
    return listTree(session.memory.stagingDir);
  }

  async stop(kind: 'drain' | 'now' = 'drain'): Promise<void> {
    const { writer } = this;
    if (writer !== null) {
      const ended = new Promise((resolve) => writer.once('exit', resolve));
      this.control.writer.requestStop(kind);
      await ended;
      this.writer = null;
    }
  }

  /** Ends the writer and lets go of the sessions. */
  async close(): Promise<void> {
    await this.stop();
    for (const memory of this.memories) {
      const figures = attachSession(memory, this.#self).ledger.read();
      expect(sumOfStates(figures), 'states of the ledger').toBe(figures.captured);
    }
    for (const fd of this.#locks.splice(0)) core.flockRelease(fd);
  }

  #attach(memory: SessionMemory): void {
    this.#post({ type: 'attach', session: memory.number, memory });
  }

  #post(message: unknown): void {
    this.#mailbox.port1.postMessage(message);
    this.control.writer.bell.ring();
  }
}

const ECHO = -1;

/** Where `LoopControl` keeps the writer's stop request: a stopped loop is started again here, which the product never does. */
const STOP_WORD = 1;

/** A store with a running writer. Its threads are ended after `threadsLiveMs`, whatever they do. */
export async function startStore(limits: Partial<SessionLimits> = {}, options: StoreOptions = {}, threadsLiveMs?: number): Promise<StoreFixture> {
  const fixture = new StoreFixture(undefined, undefined, threadsLiveMs);
  fixture.open(limits, options);
  await fixture.startWriter();
  return fixture;
}

/** Polls; the bound is for broken builds only. */
export async function until(done: () => boolean, what: string, limitMs = patience(10_000)): Promise<void> {
  const end = performance.now() + limitMs;
  while (!done()) {
    if (performance.now() > end) throw new Error(`did not come: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** Where a boundary's staged file lies. */
export function pathOf(f: StoreFixture, id: string, count: number): string {
  return stagedPath(f.memory.stagingDir, requestKey(id)!, count);
}
