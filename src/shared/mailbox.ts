/**
 * Messages for a thread that never turns its event loop: a MessagePort for the values and a doorbell to wake it.
 * The sender posts, then rings; the loop reads its bell, then takes messages until there are none.
 */

import type { MessagePort, TransferListItem } from 'node:worker_threads';
import { receiveMessageOnPort } from 'node:worker_threads';
import type { Doorbell } from './doorbell.ts';

export class MailboxSender<T> {
  readonly #port: MessagePort;
  readonly #bell: Doorbell;

  constructor(port: MessagePort, bell: Doorbell) {
    this.#port = port;
    this.#bell = bell;
  }

  post(message: T, transfer: TransferListItem[] = []): void {
    this.#port.postMessage(message, transfer);
    this.#bell.ring();
  }

  close(): void {
    this.#port.close();
  }
}

export class Mailbox<T> {
  readonly #port: MessagePort;

  /** The port gets no 'message' listener: it would never be called in a thread that blocks, and would keep others alive. */
  constructor(port: MessagePort) {
    this.#port = port;
  }

  /** The next message, or undefined. Never waits. */
  take(): T | undefined {
    return (receiveMessageOnPort(this.#port) as { message: T } | undefined)?.message;
  }
}
