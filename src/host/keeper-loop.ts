/**
 * One loop thread in the keeper's hands: start, messages, death, replacement, stop. The two kinds differ in how a thread is
 * made: the snapshot writer is a Worker, the store worker is the long-lived task of a single-slot Piscina pool.
 *
 * The mailbox belongs to a life, not to the loop: a new life gets a new one, and first of all every session it must know.
 */
import { MessageChannel, receiveMessageOnPort } from 'node:worker_threads';
import type { ErrorCode } from '../shared/errors.ts';
import type { LoopControl } from '../shared/loop-control.ts';
import { MailboxSender } from '../shared/mailbox.ts';
import { now } from '../shared/sync/clock.ts';
import type { LoopInit, LoopMessage, LoopPost } from '../shared/worker-init.ts';
import type { KeeperTuning, LoopName } from './keeper-protocol.ts';

/** How a thread is made. `ended` settles when this life is over, with what ended it. */
export interface ThreadLife {
  readonly ended: Promise<Error | null>;
  /** Asks the thread to end; `ended` settles when it did, which may be never. */
  terminate(): void;
}

export interface LoopParts {
  readonly name: LoopName;
  readonly code: ErrorCode;
  readonly control: LoopControl;
  readonly tuning: KeeperTuning;
  /** Everything of an init record but what belongs to a life. */
  readonly init: Omit<LoopInit, 'life' | 'mailbox' | 'events'>;
  readonly start: (init: LoopInit) => ThreadLife;
  /** Told of every post of the thread, also of `started`. */
  readonly onPost: (loop: KeptLoop, post: LoopPost) => void;
  /** A life ended that nobody asked to end. `token` is 0 when it never entered the thread table. */
  readonly onDeath: (loop: KeptLoop, token: number, slot: number) => void;
  /** What a new life is told first: the sessions of this moment. */
  readonly first: () => readonly LoopMessage[];
}

export class KeptLoop {
  readonly name: LoopName;
  readonly #parts: LoopParts;
  #mailbox: MailboxSender<LoopMessage> | null = null;
  #life: ThreadLife | null = null;
  #row = 0;
  #degraded = false;
  #stopping = false;
  #timer: NodeJS.Timeout | undefined;
  /** Settles when the loop has returned or was given up for good. */
  readonly over: Promise<void>;
  #settleOver!: () => void;

  constructor(parts: LoopParts) {
    this.#parts = parts;
    this.name = parts.name;
    this.over = new Promise((resolve) => {
      this.#settleOver = resolve;
    });
  }

  get running(): boolean {
    return this.#life !== null;
  }

  post(message: LoopMessage): void {
    // Between two lives there is no mailbox; the next life is told of its sessions at its start.
    this.#mailbox?.post(message);
  }

  start(): void {
    const { init, control, start, onPost, first } = this.#parts;
    const mailbox = new MessageChannel();
    const events = new MessageChannel();
    const born = now();
    let token = 0;
    let slot = -1;
    this.#mailbox = new MailboxSender(mailbox.port1, control.bell);
    for (const message of first()) this.#mailbox.post(message);
    const life = control.nextLife();
    const posted = (post: LoopPost) => {
      if (post.type === 'started') {
        ({ token, slot } = post);
        this.#recovered();
      }
      onPost(this, post);
    };
    events.port1.on('message', posted);
    this.#life = start({ ...init, life, mailbox: mailbox.port2, events: events.port2 });
    void this.#life.ended.then((error) => {
      // What the thread posted last may still be in the port.
      for (let last = receiveMessageOnPort(events.port1); last !== undefined; last = receiveMessageOnPort(events.port1)) posted(last.message);
      events.port1.close();
      mailbox.port1.close();
      this.#ended(error, token, slot, now() - born);
    });
  }

  #ended(error: Error | null, token: number, slot: number, livedMs: number): void {
    const { control, tuning, onDeath, onPost, code } = this.#parts;
    this.#life = null;
    this.#mailbox = null;
    if (control.state === 'returned' && control.stop !== 'none') {
      this.#settleOver();
      return;
    }
    control.setState('not running');
    onDeath(this, token, slot);
    if (this.#stopping) {
      this.#settleOver();
      return;
    }
    const what = this.name === 'writer' ? 'snapshot writer' : 'store worker';
    if (!this.#degraded) {
      this.#degraded = true;
      const message = `The ${what} ended (${error?.message ?? 'it returned'}) and is being replaced. Boundaries it had in hand may be lost; answers are not affected.`;
      onPost(this, { type: 'degraded', code, message, details: { loop: this.name, life: control.life, stack: error?.stack } });
    }
    this.#row = livedMs >= tuning.stableMs ? 0 : this.#row;
    const wait = tuning.backOffMs[Math.min(this.#row++, tuning.backOffMs.length - 1)] ?? 0;
    this.#timer = setTimeout(() => this.start(), wait);
  }

  #recovered(): void {
    if (!this.#degraded) return;
    this.#degraded = false;
    const what = this.name === 'writer' ? 'snapshot writer' : 'store worker';
    this.#parts.onPost(this, { type: 'recovered', code: this.#parts.code, message: `A new ${what} is running.` });
  }

  /** From now on a death is not answered by a replacement. A loop that is not running is over at once. */
  stopReplacing(): void {
    this.#stopping = true;
    clearTimeout(this.#timer);
    if (this.#life === null) this.#settleOver();
  }

  terminate(): void {
    this.#life?.terminate();
  }
}
