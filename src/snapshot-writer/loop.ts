/**
 * The writer's loop: blocks on its doorbell, serves every attached session in turn.
 *
 * What keeps it from missing work: the bell is read before the mailbox and the queues are looked at, and it sleeps on that
 * value only when all were empty (see shared/doorbell.ts). When idle it touches arena pages ahead of need, one at a time,
 * and sleeps without a deadline. A stop drains; 'now' ends after the current item and drops the rest, counted.
 */
import type { StoreEvent } from '../shared/events.ts';
import type { Files } from '../shared/files.ts';
import type { LoopControl } from '../shared/loop-control.ts';
import type { Mailbox } from '../shared/mailbox.ts';
import type { LeaseAccess } from '../shared/session/leases.ts';
import { attachSession, type SessionMemory } from '../shared/session/session.ts';
import { now } from '../shared/sync/clock.ts';
import type { ThreadHandle } from '../shared/sync/thread-table.ts';
import type { LoopMessage, LoopPost } from '../shared/worker-init.ts';
import { Persistence } from '../store-worker/persistence.ts';
import { SessionQueue } from './session-queue.ts';

/** How soon a session whose `writerBusy` somebody else holds is tried again when there is nothing else to do. */
const RETRY_MS = 20;

export interface WriterLoopParts {
  control: LoopControl;
  mailbox: Mailbox<LoopMessage>;
  self: ThreadHandle;
  files: Files;
  leases: LeaseAccess;
  /** Which life of the writer this is, from 1. */
  life: number;
  post: (event: LoopPost) => void;
}

export class WriterLoop {
  readonly #parts: WriterLoopParts;
  readonly #sessions = new Map<number, SessionQueue>();
  readonly #detaching = new Set<number>();
  readonly #persistence: Persistence;
  #wasBusy = false;

  constructor(parts: WriterLoopParts) {
    this.#parts = parts;
    this.#persistence = new Persistence(parts.post, now, undefined, 'boundary snapshots');
  }

  /** Returns when it was asked to stop and, unless that was 'now', everything queued is done. */
  run(): void {
    const { control, self } = this.#parts;
    for (;;) {
      const seen = control.bell.seen();
      // Read before the queues are: whatever was accepted before a stop was asked for is found by this turn or a later one.
      const draining = control.stop === 'drain';
      self.beat();
      const turn = this.#turn();
      if (control.stop === 'now') break;
      if (turn === 'worked') continue;
      if (turn === 'nothing') {
        if (this.#wasBusy) this.#parts.post({ type: 'idle' });
        this.#wasBusy = false;
        if (draining) break;
        if (this.#touchAhead()) continue;
      }
      self.idle();
      control.bell.wait(seen, turn === 'busy' ? RETRY_MS : Number.POSITIVE_INFINITY);
    }
    for (const queue of this.#sessions.values()) queue.dropQueued();
    for (const number of this.#sessions.keys()) this.#detached(number);
  }

  #turn(): 'nothing' | 'worked' | 'busy' {
    this.#readMailbox();
    let result: 'nothing' | 'worked' | 'busy' = 'nothing';
    for (const [number, queue] of this.#sessions) {
      const step = queue.step();
      if (step === 'worked') {
        this.#parts.control.bumpProgress();
        this.#wasBusy = true;
        result = 'worked';
      } else if (step === 'lost') {
        this.#detached(number);
      } else if (step === 'busy') {
        if (result === 'nothing') result = 'busy';
      } else {
        queue.session.oversize.sweep();
        if (this.#detaching.has(number) && queue.isDrained) this.#detached(number);
      }
    }
    return result;
  }

  #readMailbox(): void {
    const { mailbox, self, files, post } = this.#parts;
    for (let message = mailbox.take(); message !== undefined; message = mailbox.take()) {
      switch (message.type) {
        case 'attach': {
          const session = attachSession(message.memory as SessionMemory, self);
          session.serveAsWriter();
          session.leases = this.#parts.leases;
          const queue = new SessionQueue(session, files, this.#persistence, (event: StoreEvent) => post(event));
          if (this.#parts.life > 1) queue.adopt();
          this.#sessions.set(message.session, queue);
          post({ type: 'attached', session: message.session });
          break;
        }
        case 'detach':
          if (this.#sessions.has(message.session)) this.#detaching.add(message.session);
          else post({ type: 'detached', session: message.session });
          break;
        case 'buffer':
          this.#sessions.get(message.session)?.session.oversize.receive(message.key, message.buffer);
          break;
      }
    }
  }

  #detached(number: number): void {
    this.#sessions.delete(number);
    this.#detaching.delete(number);
    this.#parts.post({ type: 'detached', session: number });
  }

  #touchAhead(): boolean {
    for (const queue of this.#sessions.values()) if (queue.touchAhead()) return true;
    return false;
  }
}
