/**
 * The words by which a loop thread (snapshot writer, store worker) is woken, stopped and watched. One run of words per loop,
 * made once per cache folder and kept over replacements of the thread, so that producers keep ringing the same bell.
 *
 * | word | written by | meaning |
 * |---|---|---|
 * | BELL | everybody | doorbell of the loop |
 * | STOP | host | 0 run, 1 finish what is queued and return, 2 return after the current item |
 * | STATE | loop, keeper | 0 not running, 1 running, 2 returned |
 * | PROGRESS | loop | bumped for each item done and each step of a restore: teardown counts its limit from the last bump, and an engine waits for a loop that stands still only once |
 * | LIFE | keeper | which life of the thread this is, from 1 |
 */
import { Doorbell } from './doorbell.ts';

const BELL = 0;
const STOP = 1;
const STATE = 2;
const PROGRESS = 3;
const LIFE = 4;

export type StopRequest = 'none' | 'drain' | 'now';
const STOPS: readonly StopRequest[] = ['none', 'drain', 'now'];

export type LoopState = 'not running' | 'running' | 'returned';
const STATES: readonly LoopState[] = ['not running', 'running', 'returned'];

export class LoopControl {
  static readonly WORDS = 16;

  readonly bell: Doorbell;
  readonly #words: Int32Array;
  readonly #at: number;

  constructor(words: Int32Array, at: number) {
    this.#words = words;
    this.#at = at;
    this.bell = new Doorbell(words, at + BELL);
  }

  /** Loop: read after `bell.seen()`, before sleeping. */
  get stop(): StopRequest {
    return STOPS[Atomics.load(this.#words, this.#at + STOP)] ?? 'now';
  }

  /** Host: asks the loop to return. A later, stronger request replaces an earlier one. */
  requestStop(kind: Exclude<StopRequest, 'none'>): void {
    Atomics.store(this.#words, this.#at + STOP, STOPS.indexOf(kind));
    this.bell.ring();
  }

  get state(): LoopState {
    return STATES[Atomics.load(this.#words, this.#at + STATE)] ?? 'not running';
  }

  setState(state: LoopState): void {
    Atomics.store(this.#words, this.#at + STATE, STATES.indexOf(state));
  }

  /** Loop: one item is done, well or badly. */
  bumpProgress(): void {
    Atomics.add(this.#words, this.#at + PROGRESS, 1);
  }

  get progress(): number {
    return Atomics.load(this.#words, this.#at + PROGRESS);
  }

  get life(): number {
    return Atomics.load(this.#words, this.#at + LIFE);
  }

  /** Keeper: a new thread takes over the loop. */
  nextLife(): number {
    this.setState('not running');
    return Atomics.add(this.#words, this.#at + LIFE, 1) + 1;
  }
}

/** Both loops of one cache folder. */
export class HubControl {
  static readonly BYTES = 2 * LoopControl.WORDS * 4;

  readonly writer: LoopControl;
  readonly store: LoopControl;

  static create(): SharedArrayBuffer {
    return new SharedArrayBuffer(HubControl.BYTES);
  }

  constructor(buffer: SharedArrayBuffer) {
    const words = new Int32Array(buffer);
    this.writer = new LoopControl(words, 0);
    this.store = new LoopControl(words, LoopControl.WORDS);
  }
}
