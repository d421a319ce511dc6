/**
 * The keeper as the main thread holds it: start and replacement of the Worker, messages both ways, questions that settle
 * also when it dies, and the references that keep the process alive only while somebody waits.
 */
import type { MessagePort } from 'node:worker_threads';
import { MessageChannel, receiveMessageOnPort, Worker } from 'node:worker_threads';
import type { FromKeeper, KeeperInit, ToKeeper } from './keeper-protocol.ts';
import { exitOf, workerFlags } from './worker-threads.ts';

export interface KeeperLinkParts {
  readonly init: Omit<KeeperInit, 'port'>;
  readonly onMessage: (message: FromKeeper) => void;
  /** The keeper ended, asked or not. `threadId` is the one it had. */
  readonly onEnd: (error: Error | null, threadId: number) => void;
}

export class KeeperLink {
  readonly #parts: KeeperLinkParts;
  #worker!: Worker;
  #port!: MessagePort;
  #holds = 0;
  #running = false;
  /** Questions under way, by the answer they wait for. */
  readonly #waiting = new Map<string, () => void>();

  constructor(parts: KeeperLinkParts) {
    this.#parts = parts;
    this.start();
  }

  /** Starts the keeper, at first and after its death. */
  start(): void {
    const { init, onMessage, onEnd } = this.#parts;
    const { port1, port2 } = new MessageChannel();
    const workerData: KeeperInit = { ...init, port: port2 };
    const worker = new Worker(new URL('./keeper.js', import.meta.url), { name: 'tidemark-keeper', workerData, transferList: [port2], ...workerFlags() });
    const { threadId } = worker;
    let failure: Error | null = null;
    port1.on('message', onMessage);
    worker.on('error', (error: Error) => {
      failure = error;
    });
    worker.once('exit', () => {
      this.#running = false;
      // What it posted last, the answer to a close above all, may still be in the port: nothing orders it before this event.
      for (let last = receiveMessageOnPort(port1); last !== undefined; last = receiveMessageOnPort(port1)) onMessage(last.message);
      port1.close();
      onEnd(failure, threadId);
    });
    this.#worker = worker;
    this.#port = port1;
    this.#running = true;
    this.#setRef(this.#holds > 0);
  }

  send(message: ToKeeper, transfer: MessagePort[] = []): void {
    this.#port.postMessage(message, transfer);
  }

  /** Sends and waits for `answer`, keeping the process alive meanwhile. False when it did not come within `limitMs`. */
  async ask(message: ToKeeper, answer: string, transfer: MessagePort[] = [], limitMs = Number.POSITIVE_INFINITY): Promise<boolean> {
    let timer: NodeJS.Timeout | undefined;
    const answered = new Promise<boolean>((resolve) => {
      this.#waiting.set(answer, () => resolve(true));
      if (limitMs !== Number.POSITIVE_INFINITY) timer = setTimeout(() => resolve(false), Math.min(limitMs, 0x7fffffff));
    });
    this.send(message, transfer);
    try {
      return await this.#holding(answered);
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(answer);
    }
  }

  /** The answer came, or will not come any more. */
  answer(what: string): void {
    this.#waiting.get(what)?.();
  }

  /** Settles when the thread has ended. */
  async ended(): Promise<void> {
    if (this.#running) await this.#holding(exitOf(this.#worker));
  }

  /** Keeps the process alive until the matching `unref`. */
  ref(): void {
    if (this.#holds++ === 0) this.#setRef(true);
  }

  unref(): void {
    if (--this.#holds === 0) this.#setRef(false);
  }

  get isHeld(): boolean {
    return this.#holds > 0;
  }

  #setRef(on: boolean): void {
    for (const handle of [this.#worker, this.#port]) {
      if (on) handle.ref();
      else handle.unref();
    }
  }

  async #holding<T>(promise: Promise<T>): Promise<T> {
    this.ref();
    try {
      return await promise;
    } finally {
      this.unref();
    }
  }
}
