// A key-value cache is one large buffer that each step writes a row of. What must not happen: a copy of the whole buffer per step because some
// handle of the old state is still alive.
import { expect, test } from 'vitest';
import * as mx from '../../src/engine-thread/mlx/ops.ts';

const s = mx.openEngineStream('cpu');
const ROWS = 4096;

/** One decode step as a cache does it: update, look at the valid part, drop the old handle before evaluation. */
function step(cache: mx.Tensor, row: number): mx.Tensor {
  return mx.scope(() => {
    const update = mx.full([1, 64], row, 'bfloat16', s);
    const next = mx.retain(mx.sliceUpdate(cache, update, [row, 0], [row + 1, 64], s));
    mx.release(cache);
    const seen = mx.sum(mx.slice(next, [0, 0], [row + 1, 64], s), null, false, s);
    mx.evaluate([next, seen]);
    return next;
  });
}

test('the buffer stays where it is', () => {
  let cache = mx.zeros([ROWS, 64], 'bfloat16', s);
  mx.evaluate([cache]);
  const address = mx.bufferAddress(cache);
  for (let row = 0; row < 100; row++) {
    cache = step(cache, row);
    expect(mx.bufferAddress(cache)).toBe(address);
  }
  const last = mx.contiguous(mx.slice(cache, [99, 0], [100, 64], s), s);
  mx.evaluate([last]);
  expect(mx.toFloat32Array(last)[63]).toBe(99);
  mx.release(cache);
});

test('copies of single rows do not move it', () => {
  let cache = mx.zeros([ROWS, 64], 'bfloat16', s);
  mx.evaluate([cache]);
  const address = mx.bufferAddress(cache);
  for (let row = 0; row < 40; row++) {
    cache = step(cache, row);
    if (row % 10 === 9) {
      mx.scope(() => {
        const block = mx.copy(mx.contiguous(mx.slice(cache, [row - 9, 0], [row + 1, 64], s), s), s);
        mx.evaluate([block]);
        expect(mx.bufferAddress(block)).not.toBe(address);
        expect(mx.toFloat32Array(block)[64 * 9]).toBe(row);
      });
    }
    expect(mx.bufferAddress(cache)).toBe(address);
  }
});

test('a handle held over evaluation does move it, and keeps the old bytes', () => {
  const old = mx.zeros([ROWS, 64], 'bfloat16', s);
  mx.evaluate([old]);
  const next = mx.sliceUpdate(old, mx.full([1, 64], 7, 'bfloat16', s), [0, 0], [1, 64], s);
  mx.evaluate([next]);
  expect(mx.bufferAddress(next)).not.toBe(mx.bufferAddress(old));
  expect(mx.toFloat32Array(old)[0]).toBe(0);
  expect(mx.toFloat32Array(next)[0]).toBe(7);
});
