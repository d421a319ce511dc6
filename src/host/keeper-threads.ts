/** How the keeper makes the two threads. */
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { Piscina } from 'piscina';
import type { LoopInit } from '../shared/worker-init.ts';
import type { ThreadLife } from './keeper-loop.ts';
import type { KeeperTuning } from './keeper-protocol.ts';

export function startWriter(init: LoopInit, tuning: KeeperTuning): ThreadLife {
  const worker = new Worker(tuning.writerEntry ?? new URL('../snapshot-writer/main.js', import.meta.url), {
    name: 'tidemark-writer',
    workerData: { ...init, ...tuning.writerInit },
    transferList: [init.mailbox, init.events],
  });
  let failure: Error | null = null;
  worker.on('error', (error: Error) => {
    failure = error;
  });
  return {
    ended: new Promise((resolve) => {
      worker.once('exit', (code) => resolve(failure ?? (code === 0 ? null : new Error(`exit code ${code}`))));
    }),
    terminate: () => void worker.terminate(),
  };
}

/**
 * The pool gives the store worker its life cycle. One slot, one task that never ends by itself: a second `run` would wait for
 * it. A task that throws leaves its thread to the next; a thread that dies is replaced by the pool.
 */
export class StorePool {
  readonly #pool: Piscina;
  #destroyed: Promise<void> | null = null;

  constructor(tuning: KeeperTuning) {
    this.#pool = new Piscina({
      filename: tuning.storeEntry ?? fileURLToPath(new URL('../store-worker/main.js', import.meta.url)),
      minThreads: 1,
      maxThreads: 1,
      idleTimeout: Number.POSITIVE_INFINITY,
      // 'sync' would freeze the worker's event loop between tasks; a loop thread has no use for it.
      atomics: 'disabled',
    });
    // A thread that dies between two tasks is replaced by the pool; a task in it rejects by itself.
    this.#pool.on('error', () => undefined);
  }

  start(init: LoopInit, tuning: KeeperTuning): ThreadLife {
    const ended = this.#pool.run({ ...init, ...tuning.storeInit }, { transferList: [init.mailbox, init.events] }).then(
      () => null,
      (error: unknown) => (error instanceof Error ? error : new Error(String(error))),
    );
    return { ended, terminate: () => void this.destroy() };
  }

  /** Ends the thread and, with it, a running task. Settles when the thread is gone, which may be never. */
  destroy(): Promise<void> {
    this.#destroyed ??= this.#pool.destroy();
    return this.#destroyed;
  }
}
