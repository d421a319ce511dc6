/**
 * Preloaded (`node --import`) into a child: in its engine thread every clear says, as a JSON line, which streams were drained for it; and pass
 * TIDEMARK_FAULT.at fails with the code given there.
 */
import { writeSync } from 'node:fs';
import { isMainThread, workerData } from 'node:worker_threads';

const load = (path) => import(new URL(`../../dist/${path}`, import.meta.url));

if (!isMainThread && workerData?.delivery !== undefined && workerData.requests !== undefined) {
  const { EngineModel } = await load('engine-thread/engine-model.js');
  const { mlx } = await load('engine-thread/mlx/binding.js');
  const { TidemarkError } = await load('shared/errors.js');
  const { at, code, lostAt } = JSON.parse(process.env.TIDEMARK_FAULT ?? '{}');
  const native = mlx();
  const { synchronize, clearCache, setEngineStream, newStream } = native;
  let engine = null;
  let made = 0;
  let clears = 0;
  let drained = [];
  native.newStream = (device) => {
    made++;
    return newStream(device);
  };
  native.setEngineStream = (s) => {
    engine = s;
    setEngineStream(s);
  };
  native.synchronize = (s) => {
    drained.push(s === engine ? 'engine' : 'other');
    if (clears === lostAt) throw new TidemarkError('DEVICE_LOST', 'the device takes no more work');
    synchronize(s);
  };
  native.clearCache = () => {
    clears++;
    // Whole lines, whatever else is going on in the process.
    writeSync(1, `${JSON.stringify({ clear: drained, made })}\n`);
    drained = [];
    clearCache();
  };
  const { forward } = EngineModel.prototype;
  let passes = 0;
  EngineModel.prototype.forward = function (...args) {
    if (++passes === at) throw new TidemarkError(code, 'this pass fails');
    return forward.apply(this, args);
  };
}
