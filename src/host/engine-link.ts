/**
 * The engine Worker as main sees it: start, Comlink calls that settle also when the thread dies, and the references
 * that keep the process alive only while something is pending.
 *
 * Comlink alone is not enough: its calls never settle once the worker is gone, and errors lose their class. So each
 * call races the worker's end, and the engine answers with records (`Reply`).
 */
import type { MessagePort } from 'node:worker_threads';
import { Worker } from 'node:worker_threads';
import * as Comlink from 'comlink';
import nodeEndpoint from 'comlink/dist/esm/node-adapter.mjs';
import type { Delivery, EngineApi, EngineInit, EngineStoreInit, Reply } from '../shared/engine-protocol.ts';
import { errorFromWire, TidemarkError } from '../shared/errors.ts';
import { exitOf, workerFlags } from './worker-threads.ts';

export class EngineLink {
  readonly #worker: Worker;
  readonly #api: Comlink.Remote<EngineApi>;
  readonly #delivery: MessagePort;
  readonly #died: Promise<never>;
  #death: TidemarkError | null = null;
  #holds = 0;
  #ending = false;
  #givenUp = false;

  /**
   * @param delivery main's end of the delivery port; `onDelivery` gets each message in order
   * @param onDeath called once when the thread ends without having been asked to
   */
  constructor(init: EngineInit, delivery: MessagePort, onDelivery: (message: Delivery) => void, onDeath: (error: TidemarkError) => void) {
    this.#worker = new Worker(new URL('../engine-thread/main.js', import.meta.url), {
      name: 'tidemark-engine',
      ...workerFlags(),
      workerData: init,
      transferList: [init.delivery, ...(init.store === null ? [] : [init.store.hubPort])],
    });
    this.#api = Comlink.wrap<EngineApi>(nodeEndpoint(this.#worker));
    this.#delivery = delivery;
    delivery.on('message', onDelivery);
    let thrown: unknown;
    this.#worker.on('error', (error) => {
      thrown = error;
    });
    this.#died = exitOf(this.#worker).then((code) => {
      const death = new TidemarkError(
        'ENGINE_DIED',
        `The engine thread ended (${thrown instanceof Error ? thrown.message : `exit code ${code}`}). Create a new engine; what was durable is restored by it.`,
        { cause: thrown, details: { exitCode: code } },
      );
      this.#death = death;
      delivery.close();
      if (!this.#ending) onDeath(death);
      throw death;
    });
    // Every caller races this promise; nobody may be there to see it when an idle engine ends.
    this.#died.catch(() => undefined);
    this.#setRef(false);
  }

  get death(): TidemarkError | null {
    return this.#death;
  }

  get threadId(): number {
    return this.#worker.threadId;
  }

  /** Calls one method of the engine; rejects with the engine's own error, ENGINE_DIED, or INVALID_ARGUMENT for what cannot be sent. */
  async call<T>(invoke: (api: Comlink.Remote<EngineApi>) => Promise<Reply<T>>): Promise<T> {
    if (this.#death !== null) throw this.#death;
    this.hold();
    try {
      const reply = await Promise.race([invoke(this.#api), this.#died]);
      if (!reply.ok) throw errorFromWire(reply.error);
      return reply.value;
    } catch (error) {
      throw isUnsendable(error) ? unsendable(error) : error;
    } finally {
      this.unhold();
    }
  }

  /** Gives the engine thread another session with the store. */
  async renewStore(init: EngineStoreInit): Promise<void> {
    await this.call((api) => api.renewStore(Comlink.transfer(init, [init.hubPort])));
  }

  /** Keeps the process alive until the matching `unhold`. */
  hold(): void {
    if (this.#holds++ === 0) this.#setRef(true);
  }

  unhold(): void {
    if (--this.#holds === 0) this.#setRef(false);
  }

  /** Settles when the thread has ended, which may be never. */
  get gone(): Promise<void> {
    return this.#died.catch(() => undefined);
  }

  /** Tells a sleeping engine to look at the shared words. */
  wake(): void {
    this.#delivery.postMessage({ kind: 'wake' });
  }

  /**
   * Ends the thread: asks first, terminates when it has not ended within `limitMs`. Returns true when it ended by itself; else it
   * sits in a native call and is given up: nothing waits for it any more, and it does not keep the process alive.
   */
  async end(limitMs: number): Promise<boolean> {
    this.#ending = true;
    if (this.#death !== null) return true;
    let timer: NodeJS.Timeout | undefined;
    const limit = new Promise<'late'>((resolve) => {
      timer = setTimeout(() => resolve('late'), limitMs);
    });
    const asked = this.call((api) => api.shutdown()).catch(() => undefined);
    const first = await Promise.race([asked.then(() => this.gone), limit]);
    clearTimeout(timer);
    if (first !== 'late') return true;
    // terminate() settles only when native code returns; it is not awaited, since that may be never. It refs the worker itself.
    void this.#worker.terminate();
    this.#givenUp = true;
    this.#setRef(false);
    return false;
  }

  #setRef(on: boolean): void {
    if (on && !this.#givenUp) {
      this.#worker.ref();
      this.#delivery.ref();
    } else {
      this.#worker.unref();
      this.#delivery.unref();
    }
  }
}

function isUnsendable(error: unknown): error is DOMException {
  return error instanceof DOMException && error.name === 'DataCloneError';
}

/** Messages and template variables go to the engine thread as copies: a function or a class instance in them does not. */
function unsendable(error: DOMException): TidemarkError {
  return new TidemarkError(
    'INVALID_ARGUMENT',
    `request.messages and request.templateOptions must be plain data that can be copied to the engine's thread (${error.message}). Leave out functions and the like.`,
    { cause: error, details: { field: 'request', expected: 'plain data', received: error.message } },
  );
}
