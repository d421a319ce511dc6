/**
 * What is captured: tide-5m as it is, and synthetic hybrids (delta net layers with a recurrent matrix and a convolution
 * window, every fourth layer full attention) in float32 whose boundary of 256 tokens is about 4 and 32 MB.
 */
import { fileURLToPath } from 'node:url';
import { ArraysCache, KvCache } from '../../dist/engine-thread/cache/index.js';
import { EngineModel } from '../../dist/engine-thread/engine-model.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';

export const BLOCK = 256;

const HYBRIDS = {
  '4 MB': { layers: 24, state: [8, 64, 64], conv: [3, 1024], kv: { heads: 2, keyDim: 64, valueDim: 64 } },
  '32 MB': { layers: 24, state: [16, 128, 128], conv: [3, 6144], kv: { heads: 4, keyDim: 256, valueDim: 256 } },
};

/**
 * `{ model, makeCaches, step }`: `step` appends one block of tokens to the caches, evaluated, as a forward pass leaves them,
 * and gives the recorder's companion its turns as the engine does.
 */
export function openCase(name, stream) {
  if (name === 'tide-5m') return tide(stream);
  const shape = HYBRIDS[name];
  const makeCaches = () =>
    Array.from({ length: shape.layers }, (_, i) =>
      i % 4 === 3
        ? new KvCache({ ...shape.kv, dtype: 'float32' })
        : new ArraysCache([
            { shape: shape.conv, dtype: 'float32' },
            { shape: shape.state, dtype: 'float32' },
          ]),
    );
  const model = { fingerprint: 'f'.repeat(64), device: 'cpu', compute: 'float32', stream, hasFixedState: true, hasSliceableState: true, causal: {} };
  return { model, makeCaches, step: (caches, _tokens, beside) => syntheticStep(caches, shape, stream, beside) };
}

function syntheticStep(caches, { kv }, s, beside) {
  mx.scope(() => {
    const rows = (dim) => mx.add(mx.zeros([1, kv.heads, BLOCK, dim], 'float32', s), 0.5, s);
    for (const cache of caches) {
      if (cache.kind === 'kv') {
        cache.append(rows(kv.keyDim), rows(kv.valueDim), BLOCK, s);
      } else {
        for (let i = 0; i < cache.specs.length; i++) cache.set(i, mx.add(mx.mul(cache.get(i, s), 0.5, s), 1, s));
        cache.advance(BLOCK);
      }
    }
    const wanted = [...caches.flatMap((cache) => cache.tensors()), ...beside.built()];
    mx.asyncEvaluate(wanted);
    beside.running();
    mx.evaluate(wanted);
  });
}

function tide(stream) {
  const folder = fileURLToPath(new URL('../../models/tide-5m', import.meta.url));
  const ignore = () => undefined;
  const model = EngineModel.load({ model: folder, compute: 'float32', maxContext: null }, stream, 'cpu', ignore, ignore);
  return {
    model,
    makeCaches: () => model.makeCaches(),
    step: (caches, tokens, beside) => model.forward(tokens, caches, 'none', beside),
  };
}
