/** Runs one exported function of a scenario file in a Worker: everything that touches MLX does so outside the test's thread. */
import { startWorker } from '../helpers/worker.ts';

/** Rejects with the scenario's error (`code` and `details` kept) or when it takes longer than `timeoutMs`. */
export function scenario<T>(file: string, name: string, data: unknown = {}, timeoutMs = 50_000): Promise<T> {
  const worker = startWorker(new URL('./scenario-worker.mjs', import.meta.url), { workerData: { file, name, data }, timeoutMs });
  return new Promise<T>((resolve, reject) => {
    worker.once('error', reject);
    worker.once('exit', (code) => reject(new Error(`${file} ${name} ended with code ${code} and no result`)));
    worker.on('message', (message: { result: T } | { error: { code?: string; message: string; details?: object } }) => {
      if ('result' in message) resolve(message.result);
      else reject(Object.assign(new Error(message.error.message), message.error));
    });
  });
}

/** The largest difference of two lists of numbers; Infinity when their lengths differ. */
export function difference(actual: readonly number[], expected: readonly number[]): number {
  if (actual.length !== expected.length) return Infinity;
  return actual.reduce((worst, value, i) => Math.max(worst, Math.abs(value - expected[i]!)), 0);
}
