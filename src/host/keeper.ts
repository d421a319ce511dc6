/**
 * The keeper: a Worker without work of its own that makes the store worker and the snapshot writer of one cache folder and
 * replaces them when they die, also while the app's main thread is busy. (On main, a pool with a long-lived task would keep
 * the process alive for ever, and a blocked main thread could not start a replacement.)
 *
 * It turns its event loop, takes no lock and touches no file. It ends when it is told to close and both loops are over.
 *
 * Death of a loop: its thread is marked dead; sessions of which it held a lock are closed, because what the lock guards may
 * be half changed; all others are given to the next life.
 */

import type { MessagePort } from 'node:worker_threads';
import { workerData } from 'node:worker_threads';
import { HubControl } from '../shared/loop-control.ts';
import type { Session, SessionMemory } from '../shared/session/index.ts';
import { attachSession } from '../shared/session/index.ts';
import { now } from '../shared/sync/clock.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import type { HubMail, LoopMessage, LoopPost } from '../shared/worker-init.ts';
import { lostLock } from './hub-sessions.ts';
import { KeptLoop } from './keeper-loop.ts';
import type { FromKeeper, KeeperInit, LoopName, ToKeeper } from './keeper-protocol.ts';
import { StorePool, startWriter } from './keeper-threads.ts';

interface Served {
  readonly memory: SessionMemory;
  readonly session: Session;
  readonly port: MessagePort;
  /** Loops that have answered the pending attach or detach. */
  readonly answered: Set<LoopName>;
  state: 'attaching' | 'attached' | 'detaching';
}

const POLL_MS = 20;

class Keeper {
  readonly #init: KeeperInit;
  readonly #control: HubControl;
  readonly #threads: ThreadTable;
  readonly #self;
  readonly #pool: StorePool;
  readonly #loops: KeptLoop[] = [];
  readonly #sessions = new Map<number, Served>();

  constructor(init: KeeperInit) {
    this.#init = init;
    this.#control = new HubControl(init.hub);
    this.#threads = new ThreadTable(init.shared.threads);
    this.#self = this.#threads.enter('keeper', 'keeper');
    this.#pool = new StorePool(init.tuning);
    const { tuning, port, ...common } = init;
    const parts = {
      tuning,
      init: common,
      onPost: (loop: KeptLoop, post: LoopPost) => this.#posted(loop, post),
      onDeath: (loop: KeptLoop, token: number, slot: number) => this.#died(loop, token, slot),
      first: () => this.#attached(),
    };
    this.#loops.push(
      new KeptLoop({
        ...parts,
        name: 'store',
        code: 'STORE_WORKER_DIED',
        control: this.#control.store,
        start: (loopInit) => this.#pool.start(loopInit, tuning),
      }),
    );
    // Other processes' folders are only read: nothing is staged, so there is nobody to write.
    if (init.mode === 'writer')
      this.#loops.push(
        new KeptLoop({ ...parts, name: 'writer', code: 'WRITER_DIED', control: this.#control.writer, start: (loopInit) => startWriter(loopInit, tuning) }),
      );
    port.on('message', (message: ToKeeper) => this.#told(message));
    for (const loop of this.#loops) loop.start();
    this.#tell({ type: 'ready' });
  }

  #tell(message: FromKeeper): void {
    this.#init.port.postMessage(message);
  }

  #told(message: ToKeeper): void {
    switch (message.type) {
      case 'attach':
        this.#attach(message.memory, message.port);
        break;
      case 'detach':
        this.#detach(message.session);
        break;
      case 'close':
        void this.#close(message.deadlineMs);
    }
  }

  #attach(memory: SessionMemory, port: MessagePort): void {
    const served: Served = { memory, session: attachSession(memory, this.#self), port, answered: new Set(), state: 'attaching' };
    this.#sessions.set(memory.number, served);
    port.on('message', ({ to, message }: HubMail) => {
      for (const loop of this.#loops) if (to === 'both' || to === loop.name) loop.post(message);
    });
    for (const loop of this.#loops) loop.post({ type: 'attach', session: memory.number, memory });
  }

  #detach(number: number): void {
    const served = this.#sessions.get(number);
    if (served === undefined) {
      this.#tell({ type: 'detached', session: number });
      return;
    }
    served.state = 'detaching';
    served.answered.clear();
    // A loop that is not running holds nothing of the session, and its next life is not told of it.
    for (const loop of this.#loops) {
      if (loop.running) loop.post({ type: 'detach', session: number });
      else this.#answered(served, loop);
    }
  }

  #posted(loop: KeptLoop, post: LoopPost): void {
    switch (post.type) {
      case 'started':
        break;
      case 'idle':
        this.#tell({ type: 'idle', loop: loop.name });
        break;
      case 'attached':
      case 'detached': {
        const served = this.#sessions.get(post.session);
        // A `detached` that nobody asked for is a loop that gave a failed session up, or is about to return.
        if (served !== undefined && served.state === (post.type === 'attached' ? 'attaching' : 'detaching')) this.#answered(served, loop);
        break;
      }
      default:
        this.#tell({ type: 'store-event', from: loop.name, event: post });
    }
  }

  #answered(served: Served, loop: KeptLoop): void {
    served.answered.add(loop.name);
    if (served.answered.size < this.#loops.length) return;
    const { number } = served.memory;
    if (served.state === 'attaching') {
      served.state = 'attached';
      this.#tell({ type: 'attached', session: number });
    } else {
      this.#forget(served);
      this.#tell({ type: 'detached', session: number });
    }
  }

  #forget(served: Served): void {
    served.port.close();
    this.#sessions.delete(served.memory.number);
  }

  /** What the dead thread leaves behind, before the next life. */
  #died(loop: KeptLoop, token: number, slot: number): void {
    if (token !== 0) this.#threads.markDead(slot, token);
    for (const served of [...this.#sessions.values()]) {
      const { session } = served;
      const lost = lostLock(session, this.#threads, token);
      if (lost !== null) this.#tell({ type: 'lost', ...lost });
      if (served.state === 'detaching') this.#answered(served, loop);
      else if (session.state === 'failed' && served.state === 'attaching') this.#answered(served, loop);
    }
  }

  /** Sessions that a new life serves. Those that have lost a lock are served by nobody any more. */
  #attached(): LoopMessage[] {
    const served = [...this.#sessions.values()].filter(({ state, session }) => state !== 'detaching' && session.state !== 'failed');
    return served.map(({ memory }) => ({ type: 'attach', session: memory.number, memory }));
  }

  /**
   * Writer first, since the store worker's units may wait for staged files; each drains while there is progress. A loop that
   * does not return is told to stop at once, then terminated, then given up: a thread in a system call cannot be ended.
   */
  async #close(deadlineMs: number): Promise<void> {
    const { tuning } = this.#init;
    const end = now() + Math.max(deadlineMs, tuning.absoluteMs);
    let drained = true;
    const stuck: string[] = [];
    for (const loop of [...this.#loops].reverse()) {
      const control = this.#control[loop.name];
      drained = loop.running && drained;
      loop.stopReplacing();
      control.requestStop('drain');
      const returned = await this.#whileProgress(loop, Math.min(deadlineMs, tuning.noProgressMs), end);
      if (returned) continue;
      drained = false;
      control.requestStop('now');
      if (await within(loop.over, tuning.stopMs)) continue;
      loop.terminate();
      if (!(await within(loop.over, tuning.terminateMs))) stuck.push(loop.name);
    }
    for (const served of [...this.#sessions.values()]) this.#forget(served);
    if (!stuck.includes('store')) await within(this.#pool.destroy(), tuning.terminateMs);
    this.#self.leave();
    this.#tell({ type: 'closed', report: { drained, stuck } });
    this.#init.port.close();
  }

  /** True when the loop is over; false when it made no progress for so long, or at the absolute end. */
  async #whileProgress(loop: KeptLoop, noProgressMs: number, end: number): Promise<boolean> {
    let last = -1;
    let since = now();
    for (;;) {
      // What either loop gets done counts: the store worker may be waiting for the writer.
      const progress = this.#control.writer.progress + this.#control.store.progress;
      if (progress !== last) {
        last = progress;
        since = now();
      }
      const left = Math.min(since + noProgressMs, end) - now();
      if (left <= 0) return false;
      if (await within(loop.over, Math.min(left, POLL_MS))) return true;
    }
  }
}

/** Whether `promise` settles within `ms`. */
async function within(promise: Promise<void>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  try {
    return await Promise.race([promise.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}

new Keeper(workerData as KeeperInit);
