import { parentPort, workerData } from 'node:worker_threads';
import * as mx from '../../dist/engine-thread/mlx/ops.js';

const { file, name, data } = workerData;
try {
  const scenarios = await import(new URL(`./${file}`, import.meta.url));
  const stream = mx.openEngineStream('cpu');
  mx.setBlasThreads(1); // test files share two cores, and waiting BLAS threads keep one busy
  const before = mx.handleCount();
  const result = await scenarios[name](stream, data);
  // Every scenario must free what it made: a handle left over is memory that an engine would lose with each request.
  if (mx.handleCount() !== before) throw new Error(`${name} left ${mx.handleCount() - before} tensors behind`);
  if (mx.foreignStreamOps() !== 0) throw new Error(`${name} bound ${mx.foreignStreamOps()} operations to another stream`);
  parentPort.postMessage({ result });
} catch (error) {
  parentPort.postMessage({ error: { code: error.code, message: `${error.message}\n${error.stack}`, details: error.details } });
}
