/**
 * The store worker's loop: one thread, so stores never race on index or folder, and restores come before each unit.
 *
 * What keeps it from missing work: the bell is read before mailbox, restore words and rings are looked at, and it sleeps on
 * that value only when all were empty (see shared/doorbell.ts). With a restore under way it sleeps in slices, because an
 * engine that has died or lost interest may never ring. Nothing here waits for the snapshot writer or for an engine.
 */
import { randomUUID } from 'node:crypto';
import type { StoreEvent } from '../shared/events.ts';
import { errnoOf } from '../shared/files.ts';
import type { LoopControl } from '../shared/loop-control.ts';
import type { Mailbox } from '../shared/mailbox.ts';
import { attachSession, type LeaseAccess, type SessionMemory } from '../shared/session/index.ts';
import { now } from '../shared/sync/clock.ts';
import type { ThreadHandle } from '../shared/sync/thread-table.ts';
import { SLICE_MS } from '../shared/sync/waits.ts';
import type { LoopMessage, LoopPost } from '../shared/worker-init.ts';
import type { BlockStore } from './block-store.ts';
import { Boundaries } from './boundaries.ts';
import { type BackOff, Persistence } from './persistence.ts';
import { SessionService } from './session-service.ts';
import type { UnitContext } from './unit-job.ts';

export interface DrainLoopParts {
  readonly control: LoopControl;
  readonly mailbox: Mailbox<LoopMessage>;
  readonly self: ThreadHandle;
  readonly leases: LeaseAccess;
  readonly post: (event: LoopPost) => void;
  readonly openStore: (emit: (event: StoreEvent) => void) => BlockStore;
  readonly backOff?: BackOff;
}

export class DrainLoop {
  readonly #parts: DrainLoopParts;
  readonly #sessions = new Map<number, SessionService>();
  readonly #boundaries: Boundaries;
  readonly #context: UnitContext;
  readonly #store: BlockStore;
  #wasBusy = false;
  #indexOnDisk: boolean;

  constructor(parts: DrainLoopParts) {
    this.#parts = parts;
    const emit = (event: StoreEvent) => {
      if (event.type === 'evicted') this.#boundaries.evicted(event.block);
      parts.post(event);
    };
    this.#boundaries = new Boundaries(emit);
    this.#store = parts.openStore(emit);
    this.#indexOnDisk = this.#store.indexOnDisk;
    this.#context = {
      store: this.#store,
      persistence: new Persistence(emit, now, parts.backOff),
      boundaries: this.#boundaries,
      emit,
      isProtected: (hash) => [...this.#sessions.values()].some((service) => service.uses(hash)),
      unique: () => randomUUID(),
    };
  }

  /** Returns when it was asked to stop and, unless that was 'now', everything queued is done. */
  run(): void {
    const { control, self, post } = this.#parts;
    for (;;) {
      const seen = control.bell.seen();
      self.beat();
      const turn = this.#turn();
      if (control.stop === 'now') break;
      if (turn === 'worked') continue;
      if (turn === 'nothing') {
        if (this.#wasBusy) post({ type: 'idle' });
        this.#wasBusy = false;
        if (control.stop === 'drain' && [...this.#sessions.values()].every((service) => service.isDrained)) break;
      }
      self.idle();
      control.bell.wait(seen, turn === 'waiting' ? SLICE_MS : Number.POSITIVE_INFINITY);
    }
    for (const [number, service] of this.#sessions) {
      this.#guarded(service, () => service.abandon());
      this.#detached(number);
    }
    this.#store.close();
  }

  /** A prefix may be stored for any session of this folder. */
  #isQueued(hashAt: (tokenCount: number) => string | null): boolean {
    return [...this.#sessions.values()].some((service) => service.hasQueued(hashAt));
  }

  #turn(): 'nothing' | 'worked' | 'waiting' {
    this.#readMailbox();
    const restores = this.#restores();
    const units = this.#units();
    if (this.#indexOnDisk !== this.#store.indexOnDisk) {
      this.#indexOnDisk = this.#store.indexOnDisk;
      for (const service of this.#sessions.values()) service.indexChanged();
    }
    if (restores === 'worked' || units === 'worked') {
      this.#wasBusy = true;
      return 'worked';
    }
    return restores;
  }

  /** One step of each restore. */
  #restores(): 'nothing' | 'worked' | 'waiting' {
    let result: 'nothing' | 'worked' | 'waiting' = 'nothing';
    for (const service of this.#sessions.values()) {
      const step = this.#guarded(service, () => {
        if (service.hasRestore) this.#parts.self.activity('job', 'restore');
        return service.stepRestore();
      });
      if (step === 'worked') {
        this.#parts.control.bumpProgress();
        result = 'worked';
      } else if (step === 'wait' && result === 'nothing') result = 'waiting';
    }
    return result;
  }

  /** One unit of each session; new restores are served before the next. */
  #units(): 'nothing' | 'worked' {
    let result: 'nothing' | 'worked' = 'nothing';
    for (const [number, service] of this.#sessions) {
      if (service.session.unitRing.length > 0) this.#parts.self.activity('job', 'unit', 30_000);
      if (this.#guarded(service, () => service.stepUnit()) === 'worked') {
        this.#parts.control.bumpProgress();
        result = 'worked';
        this.#restores();
      }
      if (service.detaching && service.isDrained) this.#detached(number);
    }
    return result;
  }

  /**
   * Runs a step for a session. A lock of the session that is lost with its owner ends the session here: nothing more can be
   * settled in it, other sessions go on. Any other error ends the unit or restore it came from.
   */
  #guarded<T>(service: SessionService, act: () => T): T | 'worked' {
    try {
      return act();
    } catch (error) {
      const code = errnoOf(error);
      const { session } = service;
      if (code === 'LOCK_OWNER_DIED' || code === 'SESSION_CLOSED') {
        session.fail();
        this.#finishLost(service);
        this.#detached(service.number);
      }
      this.#context.emit({
        type: 'note',
        code: code === 'LOCK_OWNER_DIED' ? 'LOCK_OWNER_DIED' : 'CACHE_IO',
        message: `a block of session ${service.number} could not be stored: ${error instanceof Error ? error.message : String(error)}`,
        details: { session: service.number, code, stack: error instanceof Error ? error.stack : undefined },
      });
      // What failed is off its queue, so going on makes progress.
      return 'worked';
    }
  }

  #finishLost(service: SessionService): void {
    try {
      service.finishLost();
    } catch (error) {
      const message = `units of the lost session ${service.number} were given up: ${String(error)}`;
      this.#context.emit({ type: 'note', code: 'LOCK_OWNER_DIED', message, details: { session: service.number } });
    }
  }

  #readMailbox(): void {
    const { mailbox, self, post } = this.#parts;
    for (let message = mailbox.take(); message !== undefined; message = mailbox.take()) {
      switch (message.type) {
        case 'attach': {
          const session = attachSession(message.memory as SessionMemory, self);
          session.leases = this.#parts.leases;
          const service = new SessionService(this.#context, message.session, session, (hashAt) => this.#isQueued(hashAt));
          this.#sessions.set(message.session, service);
          post({ type: 'attached', session: message.session });
          break;
        }
        case 'detach': {
          const service = this.#sessions.get(message.session);
          if (service !== undefined) service.detaching = true;
          else post({ type: 'detached', session: message.session });
          break;
        }
        case 'buffer': {
          const service = this.#sessions.get(message.session);
          service?.session.oversize.receive(message.key, message.buffer);
          service?.lookAgain();
          break;
        }
      }
    }
  }

  #detached(number: number): void {
    const service = this.#sessions.get(number);
    if (service === undefined) return;
    this.#sessions.delete(number);
    this.#boundaries.forget(service.session);
    this.#parts.post({ type: 'detached', session: number });
  }
}
