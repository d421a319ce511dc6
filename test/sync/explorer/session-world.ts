/**
 * A session's whole protocol as explorable steps: threads over the product's own layout of a session's memory, and a folder in
 * memory. What must hold lies in `SessionState`, what is explored in `loadSession`.
 */
import { dirname, join } from 'node:path';
import { WORD } from '../../../src/shared/session/layout.ts';
import { resolveLimits, type SessionLimits } from '../../../src/shared/session/limits.ts';
import { requestKey } from '../../../src/shared/session/request-key.ts';
import { createSessionMemory, type SessionMemory } from '../../../src/shared/session/session.ts';
import { stagedPath } from '../../../src/shared/staging.ts';
import { MemoryFiles } from './memory-files.ts';
import type { Operation, Scenario, Step } from './scheduler.ts';
import { World } from './scheduler.ts';
import { forgetting, type Host, loadSession } from './session-code.ts';
import { SessionState } from './session-state.ts';
import type { Mutation } from './transform.ts';
import { fakeThread, type Steps } from './world.ts';

const FOREVER = Number.POSITIVE_INFINITY;
const ROOT = '/cache/_boundary_snapshots';
/** A cap that holds one item of `ITEM_BYTES`, and no second one. */
export const ITEM_BYTES = 3000;
/** Pages that the items of a scenario can come to. */
const PAGES = 16;
/** Words from here on are of the hub's memory. */
const HUB = 1e6;

export interface SessionOptions {
  readonly limits?: Partial<SessionLimits>;
  readonly mutations?: readonly Mutation[];
  /** Somebody closes the session without a lock: its state is then looked at in steps of their own. */
  readonly closed?: boolean;
  /** Operations of the disk that fail once, and how often they succeed before. */
  readonly failing?: Readonly<Record<string, number>>;
}

export class SessionWorld implements Host {
  readonly world = new World();
  readonly files: MemoryFiles;
  readonly code: Steps;
  readonly memory: SessionMemory;
  readonly firstUnit: number;
  readonly state: SessionState;
  /** Reservations that were given, used up or not. */
  readonly reservations: { readonly bytes: number }[] = [];
  /** Staged files that were taken, by path. */
  readonly taken: string[] = [];
  readonly #options: SessionOptions;
  readonly #words: Int32Array;
  readonly #pristine: Int32Array;
  readonly #hub: Int32Array;
  readonly #stamps: Int32Array;
  readonly #pageWords: number;
  readonly #sessions = new Map<number, Steps>();
  readonly #boundaries = new Map<number, string>();
  readonly #images: number[] = [];
  #working = 0;
  /** Somebody sleeps on a bell. */
  #heard = true;

  constructor(options: SessionOptions = {}) {
    this.#options = options;
    const { world } = this;
    const limits = resolveLimits({ pendingMaxBytes: ITEM_BYTES, queueCapacity: 2, unitCapacity: 1, registryCapacity: 3, pageBytes: 4096 });
    const hub = new SharedArrayBuffer(128);
    const made = createSessionMemory({ stagingRoot: ROOT, hub, number: 1, id: 'session', limits, restore: new SharedArrayBuffer(8) });
    // A wait that is not what a scenario is about has no end: a lost wake-up then sleeps for ever.
    const patient = { reserveWaitMs: FOREVER, inlineWriteLimitMs: FOREVER, cleanupRequestWaitMs: FOREVER, cleanupAllWaitMs: FOREVER, takeWaitMs: FOREVER };
    this.memory = { ...made, limits: { ...limits, ...patient, lockWaitMs: FOREVER, ...options.limits } };
    this.#words = new Int32Array(made.control);
    this.#pristine = this.#words.slice();
    this.#hub = new Int32Array(hub);
    this.#stamps = new Int32Array(made.arena);
    this.#pageWords = limits.pageBytes / 4;
    world.addMemory(hub, HUB);
    this.files = new MemoryFiles(world, (image) => this.#boundaries.get(image));
    this.state = new SessionState(made, this.files);
    this.firstUnit = this.state.at.firstUnit;
    world.isPoint = (operation, words, i) => this.#isPoint(operation, world.address(words, i), words);
    this.code = loadSession(this, options.mutations ?? []);
  }

  /** Points are where a lock is taken or slept for, where a decision falls, and where somebody looks without a lock. */
  #isPoint(operation: Operation, at: number, words: Int32Array | BigInt64Array): boolean {
    if (operation === 'notify' || words instanceof BigInt64Array) return false;
    if (at >= HUB) return this.#heard; // bells and stop words
    const { items, registry, ledger, locks, writerRing } = this.state.at;
    if (at === WORD.state) return this.#options.closed === true;
    if (at < locks) return operation === 'load' && at === WORD.condemned;
    if (at === this.state.pendingCond) return true;
    if (at < ledger) return operation === 'compareExchange';
    if (at < items) return false;
    if (at < registry) return true; // decisions: other words of items are not stopped at
    return at >= writerRing && operation === 'load' && this.state.owner('pending') !== this.world.current.id + 1;
  }

  requireLock(lock: string, what: string): void {
    const { current, fault } = this.world;
    if (current !== undefined && fault === null && this.state.owner(lock) !== current.id + 1) this.world.fault = `${what} used without ${lock}`;
  }

  get diskFails(): boolean {
    return this.#options.failing !== undefined;
  }

  /** A thread's objects over the session; its token is `id + 1`. */
  session(id: number): Steps {
    let session = this.#sessions.get(id);
    if (session === undefined) {
      const thread = { ...fakeThread(this.world, id), activity: () => undefined, idle: () => undefined, beat: () => undefined };
      session = this.code.attachSession(this.memory, thread);
      this.#sessions.set(id, session);
    }
    return session;
  }

  store(id: number, cleanupWaits = true): Steps {
    return new this.code.BoundarySnapshotStore(this.session(id), { files: this.files, cleanupWaits });
  }

  /** The writer's loop, until every other thread has ended and everything accepted is done. */
  writer(id: number): () => Step {
    return () => {
      const session = this.session(id);
      const mail: object[] = [{ type: 'attach', session: 1, memory: this.memory }];
      const control = new this.code.HubControl(this.memory.hub).writer;
      // A turn of the loop begins with its bell, and knows nothing of the turns before.
      forgetting(this.world, control.bell, 'seen', () => true, 0);
      const mailbox = { take: () => mail.pop() };
      return new this.code.WriterLoop({ control, mailbox, self: session.self, files: this.files, life: 1, post: () => undefined }).run();
    };
  }

  /** The writer's view of the session, for one who does its steps by hand. */
  queue(id: number): Steps {
    const persistence = { succeeded: () => undefined, failed: () => undefined };
    return new this.code.SessionQueue(this.session(id), this.files, persistence, () => undefined);
  }

  /** Runs a thread from beginning to end while no other runs. */
  runAlone(id: number, program: () => Step): void {
    const { world } = this;
    const steps = program();
    world.current = { id, steps, state: 'ready', word: 0, deadline: 0, wake: 'ok', history: 0, taken: 0 };
    while (steps.next().done !== true) if (world.current.state !== 'ready') throw new Error(`thread ${id} waits for another while it is alone`);
  }

  /** A thread that works; the last of them stops the writer. */
  working(program: () => Step): () => Step {
    const { code, memory } = this;
    const ended = () => --this.#working === 0;
    this.#working++;
    return function* (): Step {
      yield* program();
      if (ended()) yield* new code.HubControl(memory.hub).writer.requestStop('drain');
      return undefined;
    };
  }

  /** Everything as at the start, for the next schedule. Call it before the threads are made. `heard`: somebody listens to bells. */
  reset(heard = true): void {
    this.#heard = heard;
    this.#words.set(this.#pristine);
    this.#hub.fill(0);
    for (let page = 0; page < PAGES; page++) this.#stamps[page * this.#pageWords] = 0;
    this.files.reset([dirname(ROOT), ROOT, join(ROOT, '_promote'), this.memory.stagingDir], this.#options.failing);
    this.#images.length = 0;
    this.taken.length = 0;
    this.reservations.length = 0;
    this.#working = 0;
    for (const session of this.#sessions.values()) session.self.held.length = 0;
  }

  /** `final` null: the session was given up, and nothing is settled any more. */
  scenario(threads: readonly (() => Step)[], more: Pick<Scenario, 'check' | 'extra'> & { final?: () => string | null | undefined } = {}): Scenario {
    return {
      words: this.#words,
      watched: this.state.watched,
      checkIsPure: true,
      threads,
      check: () => more.check?.() ?? this.state.whileOpen(this.#reserved),
      final: () => {
        const own = more.final?.();
        return own === null ? undefined : (own ?? this.state.atEnd(this.taken));
      },
      extra: () => this.#signature() + (more.extra?.() ?? 0),
    };
  }

  #signature(): number {
    let sum = this.files.signature() + this.#reserved + this.#working * 7 + this.taken.length * 1009;
    for (const word of this.#hub) sum = (Math.imul(sum, 31) + word) | 0;
    for (let page = 0; page < PAGES; page++) sum = (Math.imul(sum, 33) + this.#stamps[page * this.#pageWords]!) | 0;
    return sum;
  }

  get #reserved(): number {
    return this.reservations.reduce((sum, { bytes }) => sum + Math.max(0, bytes), 0);
  }

  /** A stamp for an image of this boundary, the same in each schedule: which of its thread's images it is. */
  nextImage(boundary: string): number {
    const me = this.world.current.id;
    this.#images[me] = (this.#images[me] ?? 0) + 1;
    const number = (me + 1) * 100 + this.#images[me]!;
    this.#boundaries.set(number, boundary);
    return number;
  }

  /** The path of the boundary whose image has this stamp. */
  boundaryOf(image: number): string {
    return join(this.memory.stagingDir, this.#boundaries.get(image) ?? 'no boundary');
  }

  pathOf(requestId: string, tokenCount: number): string {
    return stagedPath(this.memory.stagingDir, requestKey(requestId)!, tokenCount);
  }
}
