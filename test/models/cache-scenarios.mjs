import * as mx from '../../dist/engine-thread/mlx/ops.js';
import {
  captureKv,
  captureState,
  cloneCaches,
  extractRow,
  mergeCaches,
  releaseCaches,
  requireOffsets,
  restoreCaches,
} from '../../dist/engine-thread/models/index.js';
import { greedy, maxDifference, prefill, sameBits, someIds, step, withCaches, withModel } from './kit.mjs';

/** Bytes of a captured part, as a file would hold them: nothing refers to MLX afterwards. */
function stored(captures) {
  try {
    mx.evaluate(captures.flatMap((capture) => capture.tensors()));
    return captures.map((capture) => freeze(capture.toLayerState()));
  } finally {
    for (const capture of captures) capture.release();
  }
}

function freeze(state) {
  const elements = state.elements.map((element) => {
    if (element === null) return null;
    const bytes = new Uint8Array(element.byteLength);
    // In uneven pieces: readers copy slices.
    for (let at = 0; at < bytes.length; at += 1000) element.copyTo(bytes.subarray(at, Math.min(at + 1000, bytes.length)), at);
    return {
      dtype: element.dtype,
      shape: element.shape,
      byteLength: bytes.length,
      copyTo: (target, from) => target.set(bytes.subarray(from, from + target.length)),
      bytes,
    };
  });
  return { ...state, elements };
}

/** Prefill up to `tokens` in blocks, capturing each block as the engine does. */
function run(model, caches, ids, block, s) {
  const kv = [];
  for (let at = 0; at < ids.length; at += block) {
    const end = Math.min(at + block, ids.length);
    prefill(model, caches, ids.slice(at, end), s);
    kv.push(stored(captureKv(caches, at, end, s)));
  }
  return { kv, state: stored(captureState(caches, ids.length, s)) };
}

/** A restored sequence and a fork of the one that wrote it take the same steps: logits and state must be equal bit for bit. */
export function restoredEqualsFork(s, { dir, compute, counts, block }) {
  return withModel(dir, s, compute, (model) =>
    counts.map((count) =>
      withCaches(model, (writer) => {
        const parts = run(model, writer, someIds(count, 300), block, s);
        const next = someIds(7, 300, 9);
        const continued = (caches) =>
          withCaches(
            model,
            () => {
              const logits = prefill(model, caches, next, s);
              const after = greedy(model, caches, logits, 5, s);
              return {
                logits,
                after: after.logits,
                tokens: after.tokens,
                kv: stored(captureKv(caches, 0, caches[0].offset, s)),
                state: stored(captureState(caches, caches[0].offset, s)),
              };
            },
            caches,
          );
        const fork = continued(cloneCaches(writer, s));
        const restored = continued(restoreCaches(model, parts));
        const bytes = (part) => part.flatMap((layer) => layer.elements.map((element) => element.bytes));
        return {
          logits: sameBits(fork.logits, restored.logits) && sameBits(fork.after, restored.after),
          state: [...bytes(fork.kv), ...bytes(fork.state)].every((b, i) => sameBits(b, [...bytes(restored.kv), ...bytes(restored.state)][i])),
          offsets: writer.map((cache) => cache.offset),
          capacity: parts.kv.at(-1).find((layer) => layer.stored === 'slice').meta,
          parts: parts.kv.map((layers) => layers.map(({ className, stored: how, range }) => `${className} ${how} ${range ?? ''}`.trim())),
        };
      }),
    ),
  );
}

/** One prompt cut into steps in several ways; largest difference of logits and greedy tokens to the first way. */
export function splits(s, { dir, ids, ways, tokens }) {
  return withModel(dir, s, 'float32', (model) => {
    const results = ways.map((sizes) =>
      withCaches(model, (caches) => {
        let at = 0;
        let logits = null;
        for (const size of sizes) {
          const end = Math.min(at + size, ids.length);
          logits = step(model, caches, ids.slice(at, end), s, end === ids.length ? 'last' : 'none');
          at = end;
        }
        return { logits, greedy: greedy(model, caches, logits, tokens, s).tokens };
      }),
    );
    return results.map((result) => ({ difference: maxDifference(result.logits, results[0].logits), greedy: result.greedy }));
  });
}

/** All logits of a prompt in one step against the last ones of every prefix. */
export function allLogits(s, { dir, ids }) {
  return withModel(dir, s, 'float32', (model) => {
    const vocabulary = model.info.vocabSize;
    const all = withCaches(model, (caches) => step(model, caches, ids, s, 'all'));
    return ids.map((_, i) => {
      const last = withCaches(model, (caches) => step(model, caches, ids.slice(0, i + 1), s));
      return maxDifference(all.subarray(i * vocabulary, (i + 1) * vocabulary), last);
    });
  });
}

/** Rows of different lengths decode together; each must give what it gives alone, also after rows leave and join. */
export function raggedBatch(s, { dir, prompts, steps }) {
  return withModel(dir, s, 'float32', (model) => {
    const vocabulary = model.info.vocabSize;
    const begin = (ids) => {
      const caches = model.makeCaches();
      return { caches, logits: prefill(model, caches, ids, s) };
    };
    const alone = prompts.map((ids) => {
      const { caches, logits } = begin(ids);
      return withCaches(model, () => greedy(model, caches, logits, 2 * steps, s).tokens, caches);
    });

    const decode = (batch, current, count) => {
      const tokens = current.map(() => []);
      let rows = current;
      for (let i = 0; i < count; i++) {
        for (const [r, id] of rows.entries()) tokens[r].push(id);
        const logits = step(model, batch, rows, s, 'last', rows.length);
        rows = rows.map((_, r) => best(logits.subarray(r * vocabulary, (r + 1) * vocabulary)));
      }
      return { tokens, next: rows };
    };
    const best = (row) => row.reduce((top, value, i) => (value > row[top] ? i : top), 0);

    // Everyone but the last row decodes; then row 0 leaves and the last one joins.
    const started = prompts.map(begin);
    const first = started.slice(0, -1);
    const batch = mergeCaches(
      first.map(({ caches }) => caches),
      s,
    );
    const offsets = batch.map((cache) => [...cache.offsets]);
    const half = decode(
      batch,
      first.map(({ logits }) => best(logits)),
      steps,
    );
    const rows = first.map((_, r) => extractRow(batch, r, s));
    const left = withCaches(
      model,
      (caches) => {
        const logits = step(model, caches, [half.next[0]], s);
        return [half.next[0], ...greedy(model, caches, logits, steps - 1, s).tokens];
      },
      rows[0],
    );
    const joined = mergeCaches([...rows.slice(1), started.at(-1).caches], s);
    const rest = decode(joined, [...half.next.slice(1), best(started.at(-1).logits)], steps);
    for (const caches of [batch, joined, ...rows.slice(1), ...started.map(({ caches }) => caches)]) releaseCaches(caches);
    return {
      alone,
      batched: [[...half.tokens[0], ...left], ...half.tokens.slice(1).map((tokens, i) => [...tokens, ...rest.tokens[i]]), rest.tokens.at(-1)],
      offsets,
    };
  });
}

/** A key and value buffer is written in place while it has room, also after captures and while a clone of it lives. */
export function inPlace(s, { dir, steps }) {
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      prefill(model, caches, someIds(20, 300), s);
      const kv = caches.find((cache) => cache.className === 'KVCache');
      const addresses = new Set();
      for (let i = 0; i < steps; i++) {
        step(model, caches, [i % 300], s);
        const captures = [...captureKv(caches, 0, caches[0].offset, s), ...captureState(caches, caches[0].offset, s)];
        stored(captures);
        addresses.add(mx.bufferAddress(kv.tensors()[0]));
      }
      const clone = cloneCaches(caches, s);
      const apart = caches.every((cache, i) => cache.tensors().every((t, j) => mx.bufferAddress(t) !== mx.bufferAddress(clone[i].tensors()[j])));
      step(model, caches, [1], s);
      addresses.add(mx.bufferAddress(kv.tensors()[0]));
      releaseCaches(clone);
      return { addresses: addresses.size, apart };
    }),
  );
}

/** What caches refuse; each entry is [what, error code or the value]. */
export function refusals(s, { dir }) {
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      const parts = run(model, caches, someIds(40, 300), 16, s);
      const attempt = (what, f) => {
        try {
          const value = f();
          for (const item of Array.isArray(value) ? value : []) item.release();
          return [what, 'ok'];
        } catch (error) {
          return [what, error.code, error.details.reason ?? ''];
        }
      };
      const kv = (change) => ({ ...parts, kv: parts.kv.map((block, i) => block.map((layer) => change(layer, i))) });
      const batch = mergeCaches([caches, caches], s);
      const results = [
        attempt('kv ahead of the layer', () => captureKv(caches, 32, 48, s)),
        attempt('empty range', () => captureKv(caches, 16, 16, s)),
        attempt('state before its place', () => captureState(caches, 39, s)),
        attempt('offsets', () => requireOffsets(caches, 41)),
        attempt('a batch', () => captureKv(batch, 0, 40, s)),
        attempt('sound', () => restoreCaches(model, parts)),
        attempt('a block missing', () => restoreCaches(model, { ...parts, kv: [parts.kv[0], parts.kv[2]] })),
        attempt('the first block missing', () => restoreCaches(model, { ...parts, kv: parts.kv.slice(1) })),
        attempt('no state', () => restoreCaches(model, { ...parts, state: null })),
        attempt('state of another place', () => restoreCaches(model, { ...parts, kv: parts.kv.slice(0, 2) })),
        attempt('nothing', () => restoreCaches(model, { kv: [], state: null })),
        attempt('too few layers', () => restoreCaches(model, { ...parts, state: parts.state.slice(1) })),
        attempt('another class', () =>
          restoreCaches(
            model,
            kv((layer) => (layer.stored === 'slice' ? { ...layer, className: 'RotatingKVCache' } : layer)),
          ),
        ),
        attempt('another type', () =>
          restoreCaches(
            model,
            kv((layer) => ({ ...layer, elements: layer.elements.map((e) => ({ ...e, dtype: 'BF16' })) })),
          ),
        ),
        attempt('another shape', () =>
          restoreCaches(
            model,
            kv((layer) => ({ ...layer, elements: layer.elements.map((e) => ({ ...e, shape: [1, 2, 9, 32] })) })),
          ),
        ),
        attempt('another step', () =>
          restoreCaches(
            model,
            kv((layer) => ({ ...layer, meta: [layer.meta[0], 128, 256] })),
          ),
        ),
        attempt('an absurd capacity', () =>
          restoreCaches(
            model,
            kv((layer) => ({ ...layer, meta: [layer.meta[0], 256, 2 ** 40] })),
          ),
        ),
      ];
      releaseCaches(batch);
      return results;
    }),
  );
}

/** Trimming forgets: what follows is as if the tokens had not been there. A capture from before can't be read any more. */
export function trimming(s, { dir }) {
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      prefill(model, caches, someIds(40, 300), s);
      const kv = caches.find((cache) => cache.sliceable);
      const whole = caches.find((cache) => !cache.sliceable);
      const capture = kv.capture(0, 40, s);
      const result = { kv: kv.trim(10), offset: kv.offset, tooMany: kv.trim(31), negative: kv.trim(-1), whole: whole.trim(1), nothing: whole.trim(0) };
      let code = 'readable';
      try {
        capture.toLayerState().elements[0].copyTo(new Uint8Array(8), 0);
      } catch (error) {
        code = error.code;
      }
      capture.release();
      return { ...result, code };
    }),
  );
}

/** Rows of a batch take several tokens in one step; largest difference to each row alone. */
export function severalTokensPerRow(s, { dir, prompts, next }) {
  return withModel(dir, s, 'float32', (model) => {
    const started = prompts.map((ids) => {
      const caches = model.makeCaches();
      prefill(model, caches, ids, s);
      return caches;
    });
    const batch = mergeCaches(started, s);
    const together = step(model, batch, next.flat(), s, 'all', prompts.length);
    const last = step(model, batch, next.flat(), s, 'last', prompts.length);
    const size = together.length / prompts.length;
    const vocabulary = model.info.vocabSize;
    const result = started.map((caches, row) => [
      maxDifference(together.subarray(row * size, (row + 1) * size), step(model, caches, next[row], s, 'all')),
      maxDifference(last.subarray(row * vocabulary, (row + 1) * vocabulary), step(model, caches, next[row], s, 'last')),
    ]);
    for (const caches of [batch, ...started]) releaseCaches(caches);
    return result.flat();
  });
}
