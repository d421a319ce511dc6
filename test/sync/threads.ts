/** Threads of the lock tests: shared words, a Worker for each scenario, and ways to see what a thread is doing. */
import { once } from 'node:events';
import type { Worker } from 'node:worker_threads';
import type { TableSpec, ThreadInfo } from '../../dist/sync.js';
import { LockTable, ThreadTable } from '../../dist/sync.js';
import { nextMessage, startWorker } from '../helpers/worker.ts';

const ENTRY = new URL('./workers/scenarios.mjs', import.meta.url);

export interface TestThread {
  readonly worker: Worker;
  readonly exit: Promise<unknown>;
  /** Settles with what the scenario returned; rejects when it ended without. */
  readonly result: Promise<unknown>;
  /** The next thing it says before its result. */
  said(message: string): Promise<void>;
}

export class Stage {
  readonly threads = ThreadTable.create();
  readonly table = new ThreadTable(this.threads);
  readonly specs: readonly TableSpec[];
  readonly words: SharedArrayBuffer;
  readonly locks: LockTable;
  /** Numbers that threads and test share; what each means is the scenario's business. */
  readonly numbers = new SharedArrayBuffer(64 * 4);
  readonly shared = new Int32Array(this.numbers);

  constructor(specs: readonly TableSpec[] = [{ name: 'lock', rank: 1, conditions: ['condition'] }]) {
    this.specs = specs;
    this.words = new SharedArrayBuffer(LockTable.wordsFor(specs) * 4);
    this.locks = new LockTable(new Int32Array(this.words), 0, specs);
  }

  start(scenario: string, name: string, args: Record<string, unknown> = {}): TestThread {
    const { threads, words, specs, numbers } = this;
    const worker = startWorker(ENTRY, { workerData: { scenario, name, threads, words, specs, numbers, ...args } });
    const exit = once(worker, 'exit').catch(() => undefined);
    const said: string[] = [];
    let wake: () => void = () => undefined;
    const result = new Promise<unknown>((resolve, reject) => {
      worker.on('message', (message: string | { result: unknown }) => {
        if (typeof message === 'string') said.push(message);
        else resolve(message.result);
        wake();
      });
      worker.once('error', reject);
      worker.once('exit', (code) => reject(new Error(`${name} ended with ${code} and no result`)));
    });
    result.catch(() => undefined);
    return {
      worker,
      exit,
      result,
      async said(message) {
        while (!said.includes(message)) {
          await Promise.race([
            new Promise<void>((resolve) => {
              wake = resolve;
            }),
            exit.then(() => {
              if (!said.includes(message)) throw new Error(`${name} ended before it said '${message}'`);
            }),
          ]);
        }
      },
    };
  }

  /** Sets a number that scenarios sleep on. */
  set(index: number, value: number): void {
    Atomics.store(this.shared, index, value);
    Atomics.notify(this.shared, index);
  }

  thread(name: string): ThreadInfo | undefined {
    return this.table.list().findLast((thread) => thread.name === name);
  }

  /** Until the named thread is as `test` says. */
  async sees(name: string, test: (thread: ThreadInfo) => boolean): Promise<ThreadInfo> {
    for (let tries = 0; tries < 10_000; tries++) {
      const thread = this.thread(name);
      if (thread !== undefined && test(thread)) return thread;
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    throw new Error(`${name} never got there: ${JSON.stringify(this.thread(name))}`);
  }

  waits(name: string): Promise<ThreadInfo> {
    return this.sees(name, ({ wait }) => wait !== null);
  }
}

export { nextMessage };
