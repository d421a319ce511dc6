/**
 * The writer's view of one session: what to do next, one step at a time, each under that session's `writerBusy`.
 *
 * A step sweeps condemned files first (an earlier file of a boundary must be gone, or replaced, before a later one appears),
 * then writes the express item, then the oldest of the queue. Between steps nothing is held, and no item is referred to.
 */
import { type DropReason, TidemarkError } from '../shared/errors.ts';
import type { StoreEvent } from '../shared/events.ts';
import type { Files } from '../shared/files.ts';
import { sweep } from '../shared/session/cleanup.ts';
import type { ItemRef } from '../shared/session/item-space.ts';
import { DECISION, FLAG, ITEM, STATE } from '../shared/session/item-table.ts';
import { takeItem, withdraw } from '../shared/session/publication.ts';
import type { Session } from '../shared/session/session.ts';
import type { Persistence } from '../store-worker/persistence.ts';
import { type WriteOutcome, writeItem } from './write-item.ts';

/** While a cleanup or an inline write holds `writerBusy`, other sessions have their turn. */
const BUSY_WAIT_MS = 20;

export type StepResult = 'nothing' | 'worked' | 'busy' | 'lost';

export class SessionQueue {
  readonly session: Session;
  readonly #files: Files;
  /** Shared by the sessions of this writer: a disk that fails is told once. */
  readonly #persistence: Persistence;
  readonly #report: (event: StoreEvent) => void;
  /** Oversize items whose buffer has not arrived yet. */
  readonly #waiting: ItemRef[] = [];

  constructor(session: Session, files: Files, persistence: Persistence, report: (event: StoreEvent) => void) {
    this.#persistence = persistence;
    this.session = session;
    this.#files = files;
    this.#report = report;
  }

  /** Whether a step would find something. No lock. */
  get hasWork(): boolean {
    const { session } = this;
    return session.condemned > 0 || session.writerRing.length > 0 || this.#expressQueued() || this.#waiting.some((ref) => this.#arrived(ref));
  }

  get isDrained(): boolean {
    return !this.hasWork && this.#waiting.length === 0;
  }

  step(): StepResult {
    const { session } = this;
    if (session.state === 'failed') return 'lost';
    if (!this.hasWork) return 'nothing';
    try {
      if (!session.locks.writerBusy.acquire(BUSY_WAIT_MS, 'writer')) return 'busy';
      try {
        if (session.condemned > 0) this.#sweep();
        const next = this.#next();
        if (next !== null) this.#write(next);
        return 'worked';
      } finally {
        session.locks.writerBusy.release();
      }
    } catch (error) {
      return this.#lost(error);
    }
  }

  /**
   * After another life of the writer: buffers of oversize items went to the thread that died, and the descriptors of those it
   * had set aside as well, so these items end here. Any other descriptor is still in the ring.
   */
  adopt(): void {
    const { items, layout } = this.session;
    for (let item = 0; item < layout.firstUnit; item++) {
      if (items.get(item, ITEM.state) !== STATE.queued || !items.has(item, FLAG.oversize) || items.has(item, FLAG.inline)) continue;
      const ref = { item, generation: items.get(item, ITEM.generation) };
      this.#drop(ref, 'worker');
      takeItem(this.session, ref);
    }
    this.session.stagedChanged();
  }

  /** Drops what is still queued (the loop was told to end now): each boundary ends counted, its bytes are free. */
  dropQueued(): void {
    const { session } = this;
    try {
      for (let ref = this.#next() ?? this.#waiting.shift(); ref !== undefined && ref !== null; ref = this.#next() ?? this.#waiting.shift()) {
        this.#drop(ref, 'closed');
        takeItem(session, ref);
      }
      session.stagedChanged();
    } catch (error) {
      this.#lost(error);
    }
  }

  #drop({ item, generation }: ItemRef, reason: DropReason): void {
    const { session } = this;
    const boundary = this.#boundary({ item, generation });
    const dropped = session.settleAll('drop', () => {
      if (!session.items.is(item, generation) || session.items.get(item, ITEM.visible) !== 1) return false;
      withdraw(session, item, DECISION.abandoned, reason);
      return true;
    });
    if (dropped) this.#report({ type: 'dropped', reason, ...boundary });
  }

  /** Touches one fresh page of the arena ahead of need; false when there is none to touch. */
  touchAhead(): boolean {
    const { session } = this;
    if (session.state !== 'open') return false;
    return session.guarded(
      () => {
        const page = session.underPending('touchAhead', () => session.pages.takeFresh());
        if (page < 0) return false;
        session.pages.touch(page);
        session.settlePending('touchAhead', () => session.pages.giveTouched(page));
        return true;
      },
      () => false,
    );
  }

  #sweep(): void {
    const { errors } = sweep(this.session, this.#files);
    if (errors.length > 0)
      this.#report({
        type: 'note',
        code: 'CACHE_IO',
        message: `staged files could not be removed now; they go with the session: ${errors.join(', ')}`,
        details: { errors },
      });
  }

  #expressQueued(): boolean {
    const { items, layout } = this.session;
    const item = layout.expressItem;
    return (
      items.get(item, ITEM.state) === STATE.queued &&
      items.has(item, FLAG.awaited) &&
      !items.has(item, FLAG.inline) &&
      this.#arrived({ item, generation: items.get(item, ITEM.generation) })
    );
  }

  #next(): ItemRef | null {
    const { items, layout, writerRing } = this.session;
    if (this.#expressQueued()) return { item: layout.expressItem, generation: items.get(layout.expressItem, ITEM.generation) };
    const arrived = this.#waiting.findIndex((ref) => this.#arrived(ref));
    if (arrived >= 0) return this.#waiting.splice(arrived, 1)[0]!;
    for (let descriptor = writerRing.pop(); descriptor !== null; descriptor = writerRing.pop()) {
      const ref = { item: descriptor[0], generation: descriptor[1] };
      if (this.#arrived(ref)) return ref;
      this.#waiting.push(ref);
    }
    return null;
  }

  /** False only for a living oversize item whose buffer is still on its way. */
  #arrived(ref: ItemRef): boolean {
    const { items, oversize } = this.session;
    if (!items.is(ref.item, ref.generation) || items.get(ref.item, ITEM.state) !== STATE.queued) return true;
    return !items.has(ref.item, FLAG.oversize) || oversize.get(ref.item, ref.generation) !== null;
  }

  #write(ref: ItemRef): void {
    const boundary = this.#boundary(ref);
    const outcome: WriteOutcome = writeItem(this.session, ref, this.#files);
    switch (outcome.as) {
      case 'written':
        this.#persistence.succeeded();
        this.#report({ type: 'written', ...boundary });
        break;
      case 'failed':
        this.#persistence.failed(Object.assign(new Error(outcome.message), { code: outcome.errno }));
        this.#report({ type: 'failed', errno: outcome.errno, message: outcome.message, ...boundary });
        break;
      case 'dropped':
        this.#report({ type: 'dropped', reason: outcome.reason, ...boundary });
        break;
      case 'passed':
        break;
    }
  }

  #boundary(ref: ItemRef): { session: number; requestNo: number; tokenCount: number } {
    const { items, number } = this.session;
    return { session: number, requestNo: items.get(ref.item, ITEM.requestNo), tokenCount: items.get(ref.item, ITEM.tokenCount) };
  }

  /** A lock lost with its owner ends this session and no other; anything else is a fault of ours and ends the thread. */
  #lost(error: unknown): 'lost' {
    if (!(error instanceof TidemarkError) || (error.code !== 'LOCK_OWNER_DIED' && error.code !== 'LOCK_TIMEOUT')) throw error;
    this.session.fail();
    this.#report({ type: 'note', code: error.code, message: `boundary snapshots of this engine are off: ${error.message}`, details: error.details });
    return 'lost';
  }
}
