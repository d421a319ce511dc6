// A process that ends in the way of argv[2] while products of a worker are in flight on the device of argv[3]. A clean end is the test.

import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

const [way, device] = isMainThread ? process.argv.slice(2) : workerData;

if (isMainThread) {
  const worker = new Worker(new URL(import.meta.url), { workerData: [way, device] });
  worker.on('error', (error) => {
    if (error.message !== 'on purpose') throw error;
  });
  worker.on('message', async () => {
    if (way === 'main exits') process.exit(0);
    if (way === 'main throws') throw new Error('on purpose');
    if (way.startsWith('terminate')) await worker.terminate();
  });
} else {
  const mx = await import('../../dist/engine-thread/mlx/ops.js');
  const s = mx.openEngineStream(device);
  const size = device === 'cpu' ? 384 : 2048;
  const a = mx.full([size, size], 1 / size, 'float32', s);
  let x = a;
  for (let i = 0; i < 60; i++) x = mx.matmul(x, a, s);
  mx.asyncEvaluate([x]);
  if (mx.status(x) === 'available') throw new Error('nothing was in flight');
  parentPort.postMessage('in flight');
  if (way === 'worker throws') throw new Error('on purpose');
  if (way === 'worker exits') process.exit(0);
  if (way === 'terminate in a wait') mx.evaluate([x]);
  if (way !== 'worker ends') setInterval(() => undefined, 1000);
}
