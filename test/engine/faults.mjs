/**
 * Preloaded (`node --import`) into a child whose engine thread is to fail: TIDEMARK_FAULT = { kind, at?, ms? }. Patches that
 * thread alone; what it does is what a device or a driver may do there.
 */
import { isMainThread, workerData } from 'node:worker_threads';

const load = (path) => import(new URL(`../../dist/${path}`, import.meta.url));

if (!isMainThread && workerData?.delivery !== undefined && workerData.requests !== undefined) {
  const { EngineModel } = await load('engine-thread/engine-model.js');
  const { mlx } = await load('engine-thread/mlx/binding.js');
  const { TidemarkError } = await load('shared/errors.js');
  const fault = JSON.parse(process.env.TIDEMARK_FAULT);
  const native = mlx();

  /** `before(call, …args)` runs ahead of the method; a value it returns is returned instead. `call` counts from 1. */
  const patch = ({ prototype }, method, before) => {
    const original = prototype[method];
    let calls = 0;
    prototype[method] = function (...args) {
      return before.call(this, ++calls, ...args) ?? original.apply(this, args);
    };
  };

  /** Passes of one sequence and those that many share, counted together. */
  const patchPasses = (before) => {
    let passes = 0;
    for (const method of ['forward', 'decode']) patch(EngineModel, method, () => before(++passes));
  };

  const kinds = {
    /** The device is gone, from pass `at` on. */
    lost: () =>
      patchPasses((pass) => {
        if (pass >= fault.at) throw new TidemarkError('DEVICE_LOST', 'the device is gone');
      }),
    /** At pass `at` the thread sits in native code for `ms`. */
    blocks: () =>
      patchPasses((pass) => {
        if (pass === fault.at) native.testBlock(fault.ms);
      }),
    /** Something is in flight when the engine is closed, and fails. */
    failsInFlight: () =>
      patch(EngineModel, 'release', function () {
        const t = native.testFailOnStream(native.testDelay(native.zeros([4], 'float32', this.stream), 40, this.stream), this.stream);
        native.asyncEvaluate([t]);
      }),
  };
  kinds[fault.kind]();
}
