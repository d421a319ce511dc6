/** Scenarios of recorder.test.ts: real caches and the real recorder on a thread with MLX; what a sink would store is kept as bytes. */
import { publishBlock, unitsInFlight } from '../../dist/engine-thread/boundary/publish.js';
import { BoundaryRecorder } from '../../dist/engine-thread/boundary/recorder.js';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { PendingCapture } from '../../dist/engine-thread/cache/layer-cache.js';
import { mlx } from '../../dist/engine-thread/mlx/binding.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { cloneCaches, releaseCaches } from '../../dist/engine-thread/models/index.js';
import { ChainHasher } from '../../dist/shared/blocks/identity.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { attachSession, createSessionMemory } from '../../dist/shared/session/session.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { prefill, sameBits, someIds, withCaches, withModel } from '../models/kit.mjs';

const BLOCK = 4;
const TOKENS = someIds(7, 300);

function bytesOf(layers) {
  return layers.flatMap(({ elements }) =>
    elements
      .filter((element) => element !== null)
      .map((element) => {
        const bytes = new Uint8Array(element.byteLength);
        element.copyTo(bytes, 0);
        return bytes;
      }),
  );
}

/** A recorder over a sink that copies what it gets. `log`: what came, in order. */
function recorderOf(s, log, extra = {}) {
  const sink = {
    prepare: () => null,
    put(block) {
      const { start, end, kv, state } = block;
      extra.onPut?.(block);
      log.push({ put: [start, end], kv: bytesOf(kv), state: state === null ? null : bytesOf(state) });
      return 'accepted';
    },
    has: () => false,
    dropped: (reason, detail) => log.push({ dropped: reason, detail }),
    requestEnded: () => log.push({ ended: true }),
  };
  const hasher = new ChainHasher({ fingerprint: 'f', extraKeys: [] });
  return new BoundaryRecorder({ sink, hasher, stream: s, blockSize: BLOCK, persist: 'boundary', requestId: 'r', requestNo: 1, hasFixedState: true });
}

/** What came of a log, without its bytes. */
const outline = (log) => log.map(({ put, state, dropped, ended }) => (put ? `${put} ${state === null ? 'rows' : 'with state'}` : (dropped ?? ended)));

/** Seven tokens in blocks of four: at 4, and at the end of the answer. */
export function tail(s, { dir, aborted }) {
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      const log = [];
      const recorder = recorderOf(s, log);
      prefill(model, caches, TOKENS.slice(0, BLOCK), s);
      recorder.capture(caches, TOKENS, BLOCK, true);
      const fork = cloneCaches(caches, s);
      prefill(model, caches, TOKENS.slice(BLOCK), s);
      recorder.finish(caches, TOKENS, TOKENS.length, aborted, true);
      // The same boundary captured from a clone of that moment: what was stored is the state at 4, not a later one.
      const again = [];
      recorderOf(s, again).capture(fork, TOKENS, BLOCK, true);
      releaseCaches(fork);
      return { outline: outline(log), same: again[0].state.every((bytes, i) => sameBits(bytes, log[0].state[i])) };
    }),
  );
}

/** A boundary that was passed without a capture: live state of another place is not stored under its count. */
export function passed(s, { dir }) {
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      const log = [];
      const recorder = recorderOf(s, log);
      prefill(model, caches, TOKENS, s);
      recorder.capture(caches, TOKENS, BLOCK, true);
      recorder.finish(caches, TOKENS, TOKENS.length, true, true);
      return outline(log);
    }),
  );
}

/** How often anything is evaluated for one boundary, and what is still lazy when the bytes are taken. */
export function evaluations(s, { dir }) {
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      const native = mlx();
      const { evaluate } = native;
      const calls = [];
      const lazy = [];
      const log = [];
      const watched = caches.map((cache) => {
        if (cache.sliceable) return cache;
        const capture = cache.capture.bind(cache);
        cache.capture = (from, to, stream) => {
          // As a state that the model has not computed yet: each array behind another operation.
          const made = capture(from, to, stream);
          const lazily = new PendingCapture(
            cache.className,
            'whole',
            undefined,
            [to],
            made.tensors().map((t) => mx.scope(() => mx.keep(mx.add(t, 0, stream)))),
          );
          made.release();
          return lazily;
        };
        return cache;
      });
      const recorder = recorderOf(s, log, { onPut: () => calls.push('put') });
      prefill(model, caches, TOKENS.slice(0, BLOCK), s);
      native.evaluate = (tensors) => {
        lazy.push(tensors.filter((t) => mx.status(t) === 'unscheduled').length);
        evaluate(tensors);
        calls.push('evaluate');
        lazy.push(tensors.filter((t) => mx.status(t) !== 'available').length);
      };
      try {
        recorder.capture(watched, TOKENS, BLOCK, true);
      } finally {
        native.evaluate = evaluate;
        for (const cache of watched) if (!cache.sliceable) delete cache.capture;
      }
      return { calls, lazyBefore: lazy[0], lazyAfter: lazy[1], outline: outline(log) };
    }),
  );
}

/** A capture that throws, then an evaluation that fails: the boundary is dropped, and the sequence computes on as if nothing had been. */
export function broken(s, { dir }) {
  const undisturbed = withModel(dir, s, 'float32', (model) => withCaches(model, (caches) => prefill(model, caches, TOKENS, s, 2)));
  return withModel(dir, s, 'float32', (model) =>
    withCaches(model, (caches) => {
      const log = [];
      const recorder = recorderOf(s, log);
      const fixed = caches.find((cache) => !cache.sliceable);
      const attempt = (capture) => {
        fixed.capture = capture;
        recorder.capture(caches, TOKENS, fixed.offset, true);
        delete fixed.capture;
      };
      prefill(model, caches, TOKENS.slice(0, 2), s);
      attempt(() => {
        throw new Error('no such state');
      });
      prefill(model, caches, TOKENS.slice(2, 4), s);
      attempt((_, to) => {
        const failing = mx.scope(() => mx.keep(mlx().testFailOnStream(mx.zeros([2], 'float32', s), s)));
        return new PendingCapture(fixed.className, 'whole', undefined, [to], [failing]);
      });
      const logits = prefill(model, caches, TOKENS.slice(4), s, 2);
      recorder.finish(caches, TOKENS, TOKENS.length, false, true);
      return { log: log.map(({ dropped, detail, put }) => (put ? `${put}` : `${dropped}: ${detail}`)), same: sameBits(logits, undisturbed) };
    }),
  );
}

/** Arrays that were never evaluated, given to `save` and to `publishBlock`. */
export function lazyHandOver(s, { stagingRoot }) {
  const self = new ThreadTable(createProcessShared().threads).enter('engine', 'engine');
  const memory = createSessionMemory({ stagingRoot, hub: HubControl.create(), number: 1, limits: { pendingMaxBytes: 1 << 20, pageBytes: 4096 } });
  const session = attachSession(memory, self);
  const store = new BoundarySnapshotStore(session);
  const lazy = mx.scope(() => mx.keep(mx.add(mx.full([2, 3], 1, 'float32', s), 1, s)));
  const capture = new PendingCapture('ArraysCache', 'whole', undefined, [16], [lazy]);
  try {
    const state = capture.toLayerState();
    const saved = store.save('r', 16, [state]);
    const parent = '';
    const tokens = Uint32Array.from({ length: 16 }, (_, i) => i);
    const hash = new ChainHasher({ fingerprint: 'f', extraKeys: [] }).block(parent, tokens);
    let thrown = null;
    try {
      publishBlock(session, {
        requestNo: 1,
        requestId: 'r',
        tokenCount: 16,
        hash,
        parent,
        tokens,
        blockSize: 16,
        fingerprint: 'f',
        kv: [state],
        hasState: false,
      });
    } catch (error) {
      thrown = error.code;
    }
    const { held } = session.pending;
    const refused = { saved, thrown, status: mx.status(capture.tensors()[0]), held, units: unitsInFlight(session), has: store.has('r', 16) };
    mx.evaluate(capture.tensors());
    return { refused, evaluated: store.save('r', 16, [state]), ledger: session.ledger.read() };
  } finally {
    capture.release();
    self.leave();
  }
}
