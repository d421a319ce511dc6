// Jobs of check:metal that use MLX, which runs on worker threads only. Posts { value } or { error }.

import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { wiredLimitFor } from '../../dist/engine-thread/memory-limits.js';
import { mlx } from '../../dist/engine-thread/mlx/binding.js';
import { setWiredLimit } from '../../dist/engine-thread/mlx/memory.js';
import { clearThreadStreams, syncAndClearCache } from '../../dist/engine-thread/mlx/metal-sync.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';

const { job, device } = workerData;
const native = mlx();

function requireClose(what, got, expected, tolerance) {
  const worst = Math.max(...expected.map((value, i) => Math.abs(value - got[i])));
  if (!(worst <= tolerance)) throw new Error(`${what}: off by ${worst}, got ${[...got].slice(0, 4)}, expected ${expected.slice(0, 4)}`);
}

function failure(work) {
  try {
    work();
  } catch (error) {
    return error.code ?? error.message;
  }
  return 'no error';
}

/**
 * A chain of products on `s` that takes about `wantedMs`, not scheduled yet. Size and length are found by timing: products are
 * large enough that some dozens do, since MLX waits in `asyncEvaluate` once too many operations are under way.
 */
function chainOf(wantedMs, s) {
  let a = operand(512, s);
  for (let size = 1024; size <= 8192 && timeOf(() => mx.matmul(a, a, s)) < wantedMs / 80; size *= 2) a = operand(size, s);
  const build = (length) => {
    let x = a;
    for (let i = 0; i < length; i++) x = mx.matmul(x, a, s);
    return x;
  };
  const timed = (length) => timeOf(() => build(length));
  timed(4);
  let length = 4;
  for (let took = timed(length); took < wantedMs && length < 20_000; took = timed(length)) length = Math.ceil(length * Math.min(4, (1.2 * wantedMs) / took));
  return () => build(length);
}

function operand(size, s) {
  const a = mx.full([size, size], 1 / size, 'float32', s);
  mx.evaluate([a]);
  return a;
}

/** Milliseconds, the better of two. */
function timeOf(build) {
  const once = () => {
    const x = build();
    const begin = performance.now();
    mx.evaluate([x]);
    return performance.now() - begin;
  };
  return Math.min(once(), once());
}

/** What is in flight: how long the array still takes. */
function leftOf(x) {
  const begin = performance.now();
  mx.wait(x);
  return performance.now() - begin;
}

const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];

const JOBS = {
  computes(s) {
    const rows = mx.reshape(mx.arange(0, 12, 1, 'float32', s), [3, 4], s);
    const product = mx.matmul(rows, mx.transpose(rows, [1, 0], s), s);
    const weights = mx.softmax(mx.div(product, 100, s), [-1], true, s);
    mx.evaluate([product, weights]);
    const expected = [14, 38, 62, 38, 126, 214, 62, 214, 366];
    requireClose('matmul', mx.toFloat32Array(product), expected, 1e-3);
    const soft = [0, 3, 6].flatMap((at) => {
      const powers = expected.slice(at, at + 3).map((value) => Math.exp(value / 100));
      return powers.map((value) => value / powers.reduce((a, b) => a + b));
    });
    requireClose('softmax', mx.toFloat32Array(weights), soft, 1e-4);
    const { device_name, architecture } = mx.deviceInfo(device);
    return `${device_name ?? device}, ${architecture ?? 'architecture unknown'}`;
  },

  kernelsFromMetallib(s) {
    if (!mx.gpuAvailable()) throw new Error('MLX sees no GPU');
    // Kernels that are not compiled at run time but come out of mlx.metallib.
    const a = mx.full([64, 64], 0.5, 'bfloat16', s);
    const sum = mx.sum(mx.matmul(a, a, s), [0, 1], false, s);
    mx.evaluate([sum]);
    requireClose('bfloat16 matmul', [mx.itemNumber(sum)], [64 * 64 * 64 * 0.25], 300);
    return `kernels of mlx.metallib ran on ${mx.deviceInfo('gpu').device_name}`;
  },

  /** An array that was built here and is evaluated by another thread; and a failing step. */
  async streamErrors(s) {
    const lazy = mx.add(mx.full([4], 1, 'float32', s), 1, s);
    const other = new Worker(new URL(import.meta.url), { workerData: { job: 'useForeignStream', device, stream: s } });
    const answer = await new Promise((resolve, reject) => {
      other.once('message', resolve);
      other.once('error', reject);
    });
    await other.terminate();
    if (answer.value !== 'STREAM_AFFINITY') throw new Error(`another thread on this stream gave ${answer.value ?? answer.error}, not STREAM_AFFINITY`);
    mx.evaluate([lazy]);
    requireClose('the graph after the refusal', mx.toFloat32Array(lazy), [2, 2, 2, 2], 0);

    // MLX has no failing kernel to offer; the CPU's stream stands for the engine's.
    const cpu = device === 'cpu' ? s : mx.newStream('cpu');
    const input = mx.full([4], 1, 'float32', cpu);
    const broken = native.testFailOnStream(input, cpu);
    const after = mx.add(broken, 1, cpu);
    const code = failure(() => mx.evaluate([after]));
    if (code !== 'MLX_ERROR') throw new Error(`a failing step gave ${code}, not MLX_ERROR`);
    for (const t of [broken, after]) {
      const read = failure(() => mx.readBytes(t, 0, new Uint8Array(4)));
      if (read !== 'TENSOR_POISONED') throw new Error(`an array of the failed step gave ${read} when read, not TENSOR_POISONED`);
    }
    const fresh = mx.add(mx.full([2], 1, 'float32', s), 1, s);
    mx.evaluate([fresh]);
    requireClose('the step after the failure', mx.toFloat32Array(fresh), [2, 2], 0);
    return 'foreign streams are refused, a failed step is poisoned, the next one works';
  },

  useForeignStream() {
    return failure(() => mx.evaluate([mx.full([4], 1, 'float32', workerData.stream)]));
  },

  /**
   * How much of a chain is in flight after another stream was synchronized, as a share of the time from its start to its end; and the
   * milliseconds that are in flight in the very moment of our clear.
   */
  clearTiming(s) {
    const other = mx.newStream(device);
    const build = chainOf(70, s);
    const found = { chain: [], bareShare: [], ours: [] };
    for (let round = 0; round < 5; round++) {
      mx.scope(() => {
        const bare = build();
        mx.asyncEvaluate([bare]);
        const begin = performance.now();
        mx.synchronize(other);
        const left = leftOf(bare);
        found.chain.push(performance.now() - begin);
        found.bareShare.push(left / found.chain.at(-1));

        const ours = build();
        mx.asyncEvaluate([ours]);
        // The lock is taken after the drain and before the clear: that is where work in flight would be hit.
        const lock = { acquire: () => found.ours.push(leftOf(ours)) > 0, release: () => undefined };
        if (!syncAndClearCache(s, lock)) throw new Error('the cache was not cleared');
      });
    }
    return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, middle(values)]));
  },

  wiredLimit() {
    const bytes = wiredLimitFor(null, mx.deviceInfo(device));
    if (bytes === null) throw new Error('this device recommends no working set');
    const former = setWiredLimit(bytes);
    const found = setWiredLimit(former);
    // Before macOS 15 MLX takes the call and does nothing.
    return found === bytes ? `wired limit ${bytes} bytes` : `the wired limit of ${bytes} bytes was not taken (macOS before 15)`;
  },
};

if (isMainThread) throw new Error('this file is a Worker of scripts/check-metal.mjs');
try {
  const s = mx.openEngineStream(device);
  const value = await JOBS[job](s);
  clearThreadStreams();
  parentPort.postMessage({ value });
} catch (error) {
  parentPort.postMessage({ error: error.message });
}
