/**
 * Bytes that wait for the disk: who may add to them, and exactly how many are held.
 *
 * Guarded by `pending`; waiters sleep on `pendingCond`, which is broadcast with every release. A byte counts from its
 * reservation until the buffer is free again, whatever becomes of the item meanwhile: an item that was cancelled while the
 * writer holds it still counts. So the test for "nothing held" asks for bytes, not for entries.
 */
import { TidemarkError } from '../errors.ts';
import { now } from '../sync/clock.ts';
import type { Condition } from '../sync/condition.ts';
import type { TimedMutex } from '../sync/mutex.ts';
import { withLock } from '../sync/with-lock.ts';
import { MAX_RESERVATIONS, type SessionLimits } from './limits.ts';

const HELD = 0;
const PEAK = 1;
const BACKPRESSURE_US = 2;
const BYTES_WRITTEN = 3;
const RESERVATIONS = 4;
export const PENDING_FIGURES = 8;

/** Admitted bytes that no item uses yet. Give it to `save` or `submitUnit`, or release it. */
export class Reservation {
  #bytes: number;
  readonly #owner: PendingBytes;

  /** @internal */
  constructor(owner: PendingBytes, bytes: number) {
    this.#owner = owner;
    this.#bytes = bytes;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** @internal `pending` is held: the bytes belong to the caller from now on. */
  surrender(): number {
    const bytes = this.#bytes;
    if (bytes >= 0) this.#owner.reservationEnded();
    this.#bytes = -1;
    return Math.max(bytes, 0);
  }

  /** Gives back what was not used. Once; later calls do nothing. */
  release(): void {
    if (this.#bytes < 0) return;
    this.#owner.giveBack(this);
  }
}

/** What it needs of its session. */
export interface PendingOwner {
  readonly limits: SessionLimits;
  readonly locks: { readonly pending: TimedMutex };
  readonly pendingCond: Condition;
  readonly state: string;
  guarded<T>(fn: () => T, fallback: (error: TidemarkError) => T): T;
}

export class PendingBytes {
  readonly #owner: PendingOwner;
  readonly #figures: BigInt64Array;

  constructor(owner: PendingOwner, figures: BigInt64Array) {
    this.#owner = owner;
    this.#figures = figures;
  }

  /** Admits `bytes` at once, or returns null. Never waits for more than the lock. */
  tryReserve(bytes: number): Reservation | null {
    return this.#underLock<Reservation | null>('pending.tryReserve', () => this.#admit(bytes), null);
  }

  /** Admits `bytes`, waiting up to `timeoutMs` for others to go; null when the time passed or the session was closed. */
  reserve(bytes: number, timeoutMs: number = this.#owner.limits.reserveWaitMs): Reservation | null {
    const wait = () => {
      let got: Reservation | null = null;
      this.waitFor(() => {
        got = this.#admit(bytes);
        return got !== null;
      }, timeoutMs);
      return got;
    };
    return this.#underLock<Reservation | null>('pending.reserve', wait, null);
  }

  /** `pending` is held. Waits until `done` says so, the session closes or the time passes; the time counts as backpressure. */
  waitFor(done: () => boolean, timeoutMs: number): boolean {
    if (done()) return true;
    const begin = now();
    let met = false;
    this.#owner.pendingCond.waitUntil(
      () => {
        met = done();
        return met || this.#owner.state !== 'open';
      },
      timeoutMs,
      'pending bytes',
    );
    this.addBackpressure(now() - begin);
    return met;
  }

  addBackpressure(ms: number): void {
    Atomics.add(this.#figures, BACKPRESSURE_US, BigInt(Math.round(ms * 1000)));
  }

  /** `pending` is held: whether `bytes` more may be held. One item above the cap is let in when nothing is held. */
  fits(bytes: number): boolean {
    const held = this.held;
    return held === 0 || held + bytes <= this.#owner.limits.pendingMaxBytes;
  }

  /** `pending` is held. */
  charge(bytes: number): void {
    const held = Atomics.add(this.#figures, HELD, BigInt(bytes)) + BigInt(bytes);
    if (held > Atomics.load(this.#figures, PEAK)) Atomics.store(this.#figures, PEAK, held);
  }

  /** `pending` is held: the buffer is free, whoever waits may look. */
  discharge(bytes: number): void {
    const held = Atomics.sub(this.#figures, HELD, BigInt(bytes)) - BigInt(bytes);
    if (held < 0n) throw new TidemarkError('INVALID_ARGUMENT', `${bytes} pending bytes were given back twice`);
    this.#owner.pendingCond.broadcast();
  }

  /** @internal `pending` is held. */
  reservationEnded(): void {
    Atomics.sub(this.#figures, RESERVATIONS, 1n);
  }

  /** @internal */
  giveBack(reservation: Reservation): void {
    this.#underLock('reservation.release', () => this.discharge(reservation.surrender()), undefined);
  }

  countWritten(bytes: number): void {
    Atomics.add(this.#figures, BYTES_WRITTEN, BigInt(bytes));
  }

  /** Figures that any thread reads at any time. */
  get held(): number {
    return Number(Atomics.load(this.#figures, HELD));
  }

  get peak(): number {
    return Number(Atomics.load(this.#figures, PEAK));
  }

  get backpressureMs(): number {
    return Number(Atomics.load(this.#figures, BACKPRESSURE_US)) / 1000;
  }

  get bytesWritten(): number {
    return Number(Atomics.load(this.#figures, BYTES_WRITTEN));
  }

  #admit(bytes: number): Reservation | null {
    if (this.#owner.state !== 'open' || !this.fits(bytes) || Atomics.load(this.#figures, RESERVATIONS) >= BigInt(MAX_RESERVATIONS)) return null;
    this.charge(bytes);
    Atomics.add(this.#figures, RESERVATIONS, 1n);
    return new Reservation(this, bytes);
  }

  #underLock<T>(site: string, fn: () => T, otherwise: T): T {
    const { locks, limits } = this.#owner;
    return this.#owner.guarded(
      () => withLock(locks.pending, limits.lockWaitMs, site, fn),
      () => otherwise,
    );
  }
}
