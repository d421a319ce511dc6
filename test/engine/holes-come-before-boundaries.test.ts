/**
 * A block that was refused for lack of room leaves a hole, which is filled before the next boundary.
 *
 * Must not happen: the next boundary, prepared while its pass is computed, holding the room that the hole needs: then it would
 * never be filled, and nothing behind it could ever be restored.
 */
import { expect, test } from 'vitest';
import { type BlockSink, BoundaryRecorder, type CapturedBlock } from '../../dist/engine-thread/boundary/recorder.js';
import { PendingCapture } from '../../dist/engine-thread/cache/layer-cache.js';
import { ChainHasher } from '../../dist/shared/blocks/identity.js';

const BLOCK = 16;

/** A store with room for one block at a time, and that takes none while `full`. */
function store() {
  const stored: number[] = [];
  const state = { full: true, reserved: 0 };
  const sink: BlockSink = {
    prepare: () => {
      if (state.reserved > 0) return null;
      state.reserved++;
      let held = true;
      return {
        release: () => {
          if (held) state.reserved--;
          held = false;
        },
      };
    },
    put: (block: CapturedBlock, _mayWait, prepared) => {
      if (state.full || (prepared === null && state.reserved > 0)) return 'backpressure';
      stored.push(block.end);
      // Accepted, it is used up: the recorder lets go of it.
      prepared?.release();
      return 'accepted';
    },
    has: () => false,
    dropped: () => undefined,
    requestEnded: () => undefined,
  };
  return { sink, stored, state };
}

function sequence() {
  const cache = { className: 'KVCache', sliceable: true, rows: 1, offset: 0, capture: () => PendingCapture.placeholder('KVCache') };
  const { sink, stored, state } = store();
  const recorder = new BoundaryRecorder({
    sink,
    hasher: new ChainHasher({ fingerprint: 'f', extraKeys: [] }),
    stream: 0 as never,
    blockSize: BLOCK,
    persist: 'boundary',
    promptTokens: 1_000,
    requestId: 'r',
    requestNo: 1,
    hasFixedState: false,
  });
  const tokens = Array.from({ length: 200 }, (_, i) => i);
  const caches = [cache] as never;
  const pass = (to: number): void => {
    const companion = recorder.announce(caches, tokens, to);
    cache.offset = to;
    companion?.built();
    companion?.running();
    recorder.capture(caches, tokens, to, false);
  };
  return { pass, recorder, stored, state };
}

test('with room for one block at a time, holes are filled first and everything is stored in order', () => {
  const { pass, recorder, stored, state } = sequence();
  pass(16);
  pass(32);
  expect(stored).toEqual([]);
  state.full = false;
  pass(48);
  pass(64);
  expect(stored).toEqual([16, 32, 48, 64]);
  recorder.close();
  expect(state.reserved).toBe(0);
});

test('while there is none, nothing is held for a boundary that waits behind a hole', () => {
  const { pass, recorder, state } = sequence();
  pass(16);
  pass(32);
  expect(state.reserved).toBe(0);
  recorder.close();
  expect(state.reserved).toBe(0);
});
