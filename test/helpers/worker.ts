/**
 * Workers with a bound. A test's own thread never blocks: code that waits runs in one of these and is ended by a timer,
 * because vitest's time limit does not reach a thread in Atomics.wait.
 */
import { Worker, type WorkerOptions } from 'node:worker_threads';
import { afterEach } from 'vitest';

const running = new Set<Worker>();

/** Starts a Worker that is terminated after `timeoutMs` (default 20,000) and, at the latest, after the test. */
export function startWorker(url: URL | string, options: WorkerOptions & { timeoutMs?: number } = {}): Worker {
  const { timeoutMs = 20_000, ...rest } = options;
  const worker = new Worker(url, rest);
  running.add(worker);
  const timer = setTimeout(() => void worker.terminate(), timeoutMs);
  worker.once('exit', () => {
    clearTimeout(timer);
    running.delete(worker);
  });
  return worker;
}

/** The next message of a Worker; rejects when it fails, ends, or says nothing within `timeoutMs`. */
export function nextMessage<T>(worker: Worker, timeoutMs = 20_000): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const timer = setTimeout(() => settle(() => reject(new Error(`no message from the Worker within ${timeoutMs} ms`))), timeoutMs);
    const onMessage = (value: T): void => settle(() => resolve(value));
    const onError = (error: Error): void => settle(() => reject(error));
    const onExit = (code: number): void => settle(() => reject(new Error(`the Worker ended with code ${code} before it sent a message`)));
    const settle = (then: () => void): void => {
      clearTimeout(timer);
      worker.off('message', onMessage).off('error', onError).off('exit', onExit);
      then();
    };
    worker.on('message', onMessage).on('error', onError).on('exit', onExit);
  });
}

/** Settles with the exit code. */
export function exitOf(worker: Worker, timeoutMs = 20_000): Promise<number> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`the Worker is still running after ${timeoutMs} ms`)), timeoutMs);
    worker.once('exit', (code) => {
      clearTimeout(timer);
      resolve(code);
    });
  });
}

/** Runs a piece of CommonJS source in a Worker; `workerData` and `parentPort` are in scope. */
export function evalWorker(source: string, workerData?: unknown, timeoutMs?: number): Worker {
  const prelude = `const { workerData, parentPort, threadId, receiveMessageOnPort } = require('node:worker_threads');\n`;
  return startWorker(prelude + source, { eval: true, workerData, ...(timeoutMs === undefined ? {} : { timeoutMs }) });
}

/** Ends every Worker still running. */
export async function endWorkers(): Promise<void> {
  await Promise.all([...running].map((worker) => worker.terminate()));
}

afterEach(endWorkers);
