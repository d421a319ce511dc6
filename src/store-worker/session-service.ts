/**
 * What the store worker does for one session: its restore, step by step, and its units, one at a time.
 *
 * The drain loop never waits for the snapshot writer. A unit whose staged file is still being written is set aside and looked
 * at again when the session's staged sequence has changed, which the writer bumps with each file that it ends.
 */
import { dirname, join } from 'node:path';
import { RestoreGiver } from '../shared/blocks/restore-giver.ts';
import { decodeRestoreRequest } from '../shared/blocks/restore-request.ts';
import { keyToHex, reviveDetaching, type Session, takeUnit, type Unit } from '../shared/session/index.ts';
import { FLAG, ITEM, KIND, STATE } from '../shared/session/item-table.ts';
import { PROMOTE_FOLDER } from '../shared/staging.ts';
import { now } from '../shared/sync/clock.ts';
import { type IsQueued, RestoreJob, type RestoreOutcome } from './restore-job.ts';

import { type Adopted, failUnit, processLostUnit, processUnit, type UnitContext, type UnitOwner } from './unit-job.ts';

interface ActiveRestore {
  readonly number: number;
  readonly job: RestoreJob;
  readonly steps: Generator<'wait' | 'step', RestoreOutcome, undefined>;
}

export class SessionService implements UnitOwner {
  readonly number: number;
  readonly session: Session;
  detaching = false;
  /** Tip of the newest chain that this session stored or restored: eviction leaves it alone. */
  #tip = '';
  readonly #context: UnitContext;
  readonly #giver: RestoreGiver | null;
  #restore: ActiveRestore | null = null;
  /** Units whose bytes or staged file are on their way, and those of them that are due to be looked at again. */
  readonly #aside: Unit[] = [];
  readonly #again: Unit[] = [];
  readonly #adopted = new Map<Unit, Adopted>();
  #stagedSeen: number;

  readonly #isQueued: IsQueued;

  constructor(context: UnitContext, number: number, session: Session, isQueued: IsQueued) {
    this.#isQueued = isQueued;
    this.#context = context;
    this.number = number;
    this.session = session;
    this.#stagedSeen = session.stagedSequence;
    this.#giver = session.memory.restore.byteLength === 0 ? null : new RestoreGiver(session.memory.restore);
    this.#giver?.abandonFormer();
    this.#giver?.setIndexUsable(context.store.indexOnDisk);
    try {
      this.#adoptFormer();
    } catch (error) {
      // Locks lost with their owner, or an unreadable folder: the session is served as far as it goes.
      const message = `what a former store worker had begun for session ${number} could not be taken over: ${String(error)}`;
      context.emit({ type: 'note', code: 'STORE_WORKER_DIED', message, details: { session: number } });
    }
  }

  /**
   * Units that a former worker had taken when it died: publishing is repeatable, so they are simply done again. What it had
   * taken for them lies in the promotion folder; other files of this session there belong to nobody any more.
   */
  #adoptFormer(): void {
    const { items, layout } = this.session;
    for (let item = layout.firstUnit; item < layout.itemCount; item += 1) {
      if (items.get(item, ITEM.state) !== STATE.taken || items.get(item, ITEM.kind) !== KIND.unit) continue;
      const unit = unitAt(this.session, item);
      this.#adopted.set(unit, { promoted: null });
      this.#again.push(unit);
    }
    if (this.#context.store.mode === 'read-only') return;
    const { files } = this.#context.store;
    reviveDetaching(this.session, files);
    const folder = join(dirname(this.session.memory.stagingDir), PROMOTE_FOLDER);
    for (const name of files.list(folder).filter((entry) => entry.startsWith(`${this.session.id}.`))) {
      const unit = this.#again.find(({ key, tokenCount }) => name.startsWith(`${this.session.id}.${keyToHex(key).slice(0, 16)}-${tokenCount}-`));
      if (unit === undefined) files.removeFile(join(folder, name));
      else this.#adopted.set(unit, { promoted: join(folder, name) });
    }
  }

  /** Whether one of this session's units is of the prompt that `hashAt` belongs to. */
  hasQueued(hashAt: (tokenCount: number) => string | null): boolean {
    const { items, layout } = this.session;
    for (let item = layout.firstUnit; item < layout.itemCount; item += 1) {
      const state = items.get(item, ITEM.state);
      if (state !== STATE.queued && state !== STATE.taken) continue;
      if (hashAt(items.get(item, ITEM.tokenCount)) === Buffer.from(items.blockOf(item).buffer).toString('hex')) return true;
    }
    return false;
  }

  uses(hash: string): boolean {
    return hash === this.#tip || this.#restore?.job.using.has(hash) === true;
  }

  get hasRestore(): boolean {
    return this.#restore !== null;
  }

  /** No unit queued or set aside, no restore under way. */
  get isDrained(): boolean {
    return this.#restore === null && this.#aside.length === 0 && this.#again.length === 0 && this.session.unitRing.length === 0;
  }

  /** Up to one part of this session's restore. */
  stepRestore(): 'nothing' | 'worked' | 'wait' {
    const giver = this.#giver;
    if (giver === null) return 'nothing';
    this.#restore ??= this.#begin(giver);
    if (this.#restore === null) return 'nothing';
    const { number, steps, job } = this.#restore;
    if (this.detaching) {
      // Its engine is gone or closing: nobody would release the parts.
      giver.end(number, { tokenCount: 0, reason: 'cancelled', detail: 'the session was detached' });
      this.#restore = null;
      return 'worked';
    }
    try {
      const next = steps.next();
      if (next.done !== true) return next.value === 'wait' ? 'wait' : 'worked';
      this.#tip = [...job.using].at(-1) ?? this.#tip;
      giver.end(number, next.value);
    } catch (error) {
      // A bug or a system out of memory: the engine computes instead, and hears why.
      giver.end(number, { tokenCount: 0, reason: 'io', detail: error instanceof Error ? error.message : String(error) });
    }
    this.#restore = null;
    // Behind the answer: it writes, and a disk that takes no writes may still be read.
    this.#context.store.touch(job.restored);
    return 'worked';
  }

  #begin(giver: RestoreGiver): ActiveRestore | null {
    const polled = giver.poll();
    if (polled === null) return null;
    const request = decodeRestoreRequest(polled.request);
    this.#context.store.index.refresh(now());
    const job = new RestoreJob(this.#context.store, giver, polled.number, request, this.#isQueued);
    return { number: polled.number, job, steps: job.run() };
  }

  /** One unit: a set-aside one whose file may have come, or the next in the ring. */
  stepUnit(): 'nothing' | 'worked' {
    const sequence = this.session.stagedSequence;
    if (sequence !== this.#stagedSeen) {
      this.#stagedSeen = sequence;
      this.#again.push(...this.#aside.splice(0));
    }
    const unit = this.#again.shift() ?? takeUnit(this.session);
    if (unit === null) return 'nothing';
    this.#do(unit);
    return 'worked';
  }

  #do(unit: Unit): void {
    if (processUnit(this.#context, this, unit, this.#adopted.get(unit)) === 'aside') this.#aside.push(unit);
    else this.#tip = unit.block;
  }

  /** An oversize buffer has come: a unit may have waited for it. */
  lookAgain(): void {
    this.#again.push(...this.#aside.splice(0));
  }

  indexChanged(): void {
    this.#giver?.setIndexUsable(this.#context.store.indexOnDisk);
  }

  /** A lock of the session is lost with its owner, and with it the session; what it had handed over is stored as far as possible. */
  finishLost(): void {
    const left = [...this.#again.splice(0), ...this.#aside.splice(0)];
    for (let unit = takeUnit(this.session); unit !== null; unit = takeUnit(this.session)) left.push(unit);
    for (const unit of left) processLostUnit(this.#context, this, unit);
    this.detaching = true;
    this.stepRestore();
  }

  /** Everything that is left ends as failed, without the disk being asked to store it. */
  abandon(): void {
    if (this.#restore !== null) {
      this.#giver?.end(this.#restore.number, { tokenCount: 0, reason: 'worker', detail: 'the store worker was stopped' });
      this.#restore = null;
    }
    const left = [...this.#again.splice(0), ...this.#aside.splice(0)];
    for (let unit = takeUnit(this.session); unit !== null; unit = takeUnit(this.session)) left.push(unit);
    for (const unit of left) failUnit(this.#context, this, unit, 'ESHUTDOWN', 'the store was stopped before this block was written');
  }
}

function unitAt(session: Session, item: number): Unit {
  const { items } = session;
  return {
    item,
    generation: items.get(item, ITEM.generation),
    key: items.keyOf(item),
    requestNo: items.get(item, ITEM.requestNo),
    tokenCount: items.get(item, ITEM.tokenCount),
    block: Buffer.from(items.blockOf(item).buffer).toString('hex'),
    hasState: items.has(item, FLAG.hasState),
  };
}
