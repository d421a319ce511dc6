// Handles live until their scope ends or they are released, and are never confused: not with numbers, not with streams, not with a later
// tensor in the same place, not with another thread's.
import { afterEach, describe, expect, test } from 'vitest';
import * as mx from '../../src/engine-thread/mlx/ops.ts';

const s = mx.openEngineStream('cpu');
const one = (): mx.Tensor => mx.full([2], 1, 'float32', s);

function code(fn: () => unknown): string {
  try {
    fn();
  } catch (error) {
    return (error as { code?: string }).code ?? String(error);
  }
  return 'no error';
}

describe('scopes', () => {
  let before = mx.handleCount();
  afterEach(() => {
    before = mx.handleCount();
  });

  test('free what was made in them, also when the function throws', () => {
    before = mx.handleCount();
    mx.scope(() => {
      for (let i = 0; i < 100; i++) mx.add(one(), one(), s);
    });
    expect(() =>
      mx.scope(() => {
        one();
        throw new Error('on purpose');
      }),
    ).toThrow('on purpose');
    // An op that throws leaves nothing behind.
    expect(code(() => mx.scope(() => mx.matmul(one(), mx.zeros([3, 3], 'float32', s), s)))).toBe('MLX_ERROR');
    expect(mx.handleCount()).toBe(before);
  });

  test('hand kept tensors one scope out, retained ones out of all', () => {
    before = mx.handleCount();
    let kept: mx.Tensor | undefined;
    let retained: mx.Tensor | undefined;
    mx.scope(() => {
      mx.scope(() => {
        one();
        kept = mx.keep(one());
        retained = mx.retain(one());
      });
      expect(mx.shapeOf(kept!)).toEqual([2]);
      expect(mx.handleCount()).toBe(before + 2);
    });
    expect(code(() => mx.shapeOf(kept!))).toBe('TENSOR_RELEASED');
    expect(mx.shapeOf(retained!)).toEqual([2]);
    mx.release(retained!);
    expect(mx.handleCount()).toBe(before);
  });

  test('many are released with one call, which empties the list; one that was freed before is an error', () => {
    before = mx.handleCount();
    const many = Array.from({ length: 50 }, () => one());
    const [first] = many;
    const list = [...many];
    mx.releaseAll(list);
    expect(list).toEqual([]);
    expect(mx.handleCount()).toBe(before);
    expect(code(() => mx.shapeOf(first!))).toBe('TENSOR_RELEASED');
    const stays = one();
    expect(code(() => mx.releaseAll([first!]))).toBe('TENSOR_RELEASED');
    expect(mx.shapeOf(stays)).toEqual([2]);
    mx.releaseAll([stays]);
    mx.releaseAll([]);
    expect(mx.handleCount()).toBe(before);
  });

  test('a handle released inside its scope is not freed twice, and its place may be taken by one that stays', () => {
    before = mx.handleCount();
    const stays = mx.scope(() => {
      mx.release(one());
      return mx.keep(one());
    });
    expect(mx.handleCount()).toBe(before + 1);
    mx.release(stays);
  });

  test('keeping what already lives longer changes nothing', () => {
    before = mx.handleCount();
    const outside = one();
    mx.scope(() => mx.scope(() => mx.keep(outside)));
    expect(mx.shapeOf(outside)).toEqual([2]);
    mx.release(outside);
    expect(mx.handleCount()).toBe(before);
  });

  test('are for synchronous functions', () => {
    expect(code(() => mx.scope(async () => undefined))).toBe('INVALID_ARGUMENT');
  });
});

test('a released handle stays dead when its place is taken again', () => {
  const old = one();
  mx.release(old);
  for (let i = 0; i < 1000; i++) {
    const next = one();
    expect(code(() => mx.shapeOf(old))).toBe('TENSOR_RELEASED');
    mx.release(next);
  }
  expect(code(() => mx.release(old))).toBe('TENSOR_RELEASED');
  expect(code(() => mx.evaluate([old]))).toBe('TENSOR_RELEASED');
});

test('numbers, streams and handles are told apart', () => {
  const t = one();
  expect(Number.isSafeInteger(t)).toBe(true);
  expect(Number.isSafeInteger(s)).toBe(true);
  const wrong: (() => unknown)[] = [
    () => mx.exp(3 as mx.Tensor, s),
    () => mx.exp(s as unknown as mx.Tensor, s),
    () => mx.exp(t, t as unknown as mx.Stream),
    () => mx.exp(t, 0 as mx.Stream),
    () => (mx.exp as (a: mx.Tensor) => mx.Tensor)(t),
    () => (mx.exp as (...a: unknown[]) => unknown)(t, s, s),
    () => mx.exp('t' as unknown as mx.Tensor, s),
    () => mx.add(1, 2, s),
    () => mx.concatenate([t, 1 as mx.Tensor], 0, s),
    () => mx.reshape(t, [1.5], s),
    () => mx.reshape(t, [Number.NaN], s),
    () => mx.reshape(t, [2 ** 31], s),
    () => mx.expandDims(t, 1e300, s),
    () => mx.random.key(-1),
    () => mx.random.key(Number.NaN),
    () => mx.fromBytes(new Uint8Array(0), [2 ** 31 - 1, 2 ** 31 - 1, 2 ** 31 - 1], 'float32'),
    () => mx.rope(mx.zeros([1, 1, 1, 4], 'float32', s), 4, false, 10000, 1, 0.5, null, s),
    () => mx.reshape(t, 'ab' as unknown as number[], s),
    () => mx.astype(t, 'float' as mx.Dtype, s),
    () => mx.evaluate(t as unknown as mx.Tensor[]),
  ];
  for (const [i, call] of wrong.entries()) expect(code(call), `case ${i}`).toBe('INVALID_ARGUMENT');
  // Large scalars are still numbers.
  const big = mx.mul(t, -3.4e38, s);
  mx.evaluate([big]);
  expect(mx.toFloat32Array(big)[0]).toBe(Math.fround(-3.4e38));
});

test('ten thousand live handles, released in another order', () => {
  const before = mx.handleCount();
  const handles = Array.from({ length: 10_000 }, (_, i) => mx.scalar(i, 'float32'));
  expect(new Set(handles).size).toBe(10_000);
  for (const [i, t] of handles.entries()) expect(mx.itemNumber(t)).toBe(i);
  for (let i = 0; i < handles.length; i += 2) mx.release(handles[i]!);
  for (let i = 1; i < handles.length; i += 2) expect(mx.itemNumber(handles[i]!)).toBe(i);
  for (let i = 1; i < handles.length; i += 2) mx.release(handles[i]!);
  expect(mx.handleCount()).toBe(before);
});

test('memory does not grow over many steps', () => {
  const step = (): void =>
    mx.scope(() => {
      let x = mx.full([64, 64], 1, 'float32', s);
      for (let i = 0; i < 50; i++) x = mx.add(x, 1, s);
      mx.evaluate([x]);
    });
  for (let i = 0; i < 20; i++) step();
  const active = mx.activeBytes();
  for (let i = 0; i < 200; i++) step();
  expect(mx.activeBytes()).toBe(active);
});
