import { truncateSync } from 'node:fs';
import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { loadModel, modelFingerprint } from '../../dist/engine-thread/models/index.js';
import { prefill, step, withCaches, withModel } from './kit.mjs';

/** Logits after a prompt, and what was said while loading. */
export function logits(s, { dir, compute = 'float32', ids, decode = [] }) {
  const progress = [];
  const onProgress = (bytes, total) => progress.push([bytes, total]);
  return withModel(
    dir,
    s,
    compute,
    (model) =>
      withCaches(model, (caches) => {
        let row = prefill(model, caches, ids, s);
        for (const id of decode) row = step(model, caches, [id], s);
        return { logits: [...row], warnings: model.warnings, info: model.info, progress };
      }),
    { onProgress },
  );
}

/** Tries to load; the scenario's error is the result. Nothing may have been read when the headers were wrong. */
export function load(s, { dir }) {
  const before = mx.activeBytes();
  let read = 0;
  try {
    loadModel(dir, { stream: s, device: 'cpu', compute: 'float32', onProgress: (bytes) => (read = bytes) }).release();
  } catch (error) {
    error.details = { ...error.details, read, leaked: mx.activeBytes() - before };
    throw error;
  }
  return null;
}

/** The weight file is cut while it is being read, after its headers were found sound. */
export function cutWhileLoading(s, { dir, file }) {
  const onProgress = () => truncateSync(file, 20_000);
  try {
    loadModel(dir, { stream: s, device: 'cpu', compute: 'float32', onProgress }).release();
    return 'loaded';
  } catch (error) {
    return error.code;
  }
}

/** Affine codes, scales and biases of matrices, and what they unpack to. */
export function quantize(s, { matrices, dtype }) {
  return matrices.map(({ values, shape, groupSize, bits }) =>
    mx.scope(() => {
      const w = mx.astype(mx.fromBytes(new Uint8Array(values.buffer), shape, 'float32'), dtype, s);
      const parts = mx.quantize(w, { groupSize, bits }, s).map((t) => mx.contiguous(t, s));
      const plain = mx.dequantize(...parts, { groupSize, bits }, 'float32', s);
      mx.evaluate([...parts, plain]);
      const out = (t) => {
        const bytes = new Uint8Array(mx.nbytes(t));
        mx.readBytes(t, 0, bytes);
        return { shape: mx.shapeOf(t), dtype: mx.dtypeOf(t), bytes };
      };
      return [...parts, plain].map(out);
    }),
  );
}

export function fingerprints(_s, { dirs }) {
  return dirs.map((dir) => modelFingerprint(dir));
}
