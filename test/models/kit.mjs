/** What scenarios share: a model, a sequence that is stepped, and figures of logits. */

import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { cacheTensors, loadModel, releaseCaches } from '../../dist/engine-thread/models/index.js';

export function withModel(dir, stream, compute, use, extra = {}) {
  const model = loadModel(dir, { stream, device: 'cpu', compute, ...extra });
  try {
    return use(model);
  } finally {
    model.release();
  }
}

/** One step; the wanted logits as a Float32Array of all rows, or null. */
export function step(model, caches, ids, s, want = 'last', rows = 1) {
  return mx.scope(() => {
    const out = model.forward(mx.fromInts(Int32Array.from(ids), [rows, ids.length / rows]), caches, s, want);
    const wide = out === null ? null : mx.astype(out, 'float32', s);
    mx.evaluate([...(wide === null ? [] : [wide]), ...cacheTensors(caches)]);
    return wide === null ? null : mx.toFloat32Array(wide);
  });
}

/** Prefill in chunks; logits of the last token. */
export function prefill(model, caches, ids, s, chunk = Infinity) {
  let logits = null;
  for (let at = 0; at < ids.length; at += chunk) {
    const end = Math.min(at + chunk, ids.length);
    logits = step(model, caches, ids.slice(at, end), s, end === ids.length ? 'last' : 'none');
  }
  return logits;
}

/** `count` greedy tokens that follow `logits`, and the logits after the last of them. */
export function greedy(model, caches, logits, count, s) {
  const tokens = [];
  let row = logits;
  for (let i = 0; i < count; i++) {
    tokens.push(argmax(row));
    row = step(model, caches, [tokens[i]], s);
  }
  return { tokens, logits: row };
}

export function withCaches(model, use, caches = model.makeCaches()) {
  try {
    return use(caches);
  } finally {
    releaseCaches(caches);
  }
}

export function argmax(row) {
  let best = 0;
  for (let i = 1; i < row.length; i++) if (row[i] > row[best]) best = i;
  return best;
}

export function logsumexp(row) {
  const top = Math.max(...row);
  return top + Math.log(row.reduce((sum, value) => sum + Math.exp(value - top), 0));
}

export function maxDifference(a, b) {
  if (a.length !== b.length) return Infinity;
  return a.reduce((worst, value, i) => Math.max(worst, Math.abs(value - b[i])), 0);
}

export function sameBits(a, b) {
  return Buffer.compare(bytesOf(a), bytesOf(b)) === 0;
}

function bytesOf(array) {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

/** Pseudo-random ids, the same for the same seed. */
export function someIds(count, vocabulary, seed = 1) {
  let state = seed >>> 0;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state % vocabulary;
  });
}
