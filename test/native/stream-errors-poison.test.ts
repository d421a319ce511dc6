// MLX reports an error of a stream once; afterwards the failed arrays look available and hold garbage. What must not happen: a tensor of the
// failed step is read, used or stored.
import { describe, expect, test, vi } from 'vitest';

vi.stubEnv('TIDEMARK_TEST_OPS', '1');
const mx = await import('../../src/engine-thread/mlx/ops.ts');
const { mlx } = await import('../../src/engine-thread/mlx/binding.ts');
type Tensor = import('../../src/engine-thread/mlx/types.ts').Tensor;

const native = mlx();
const s = mx.openEngineStream('cpu');
const ones = (): Tensor => mx.full([4], 1, 'float32', s);
const failing = (a: Tensor): Tensor => native.testFailOnStream!(a, s);
/** Fails a little later, when the call that scheduled it has returned. */
const failingLater = (a: Tensor): Tensor => failing(native.testDelay!(a, 40, s));

function failure(fn: () => unknown): { code: string; name: string; message: string } {
  try {
    fn();
  } catch (error) {
    return error as { code: string; name: string; message: string };
  }
  throw new Error('nothing was thrown');
}

describe('an error on the stream', () => {
  test('poisons the outputs named and everything built since the last success', () => {
    const good = ones();
    mx.evaluate([good]);
    const input = ones();
    const broken = failing(input);
    const after = mx.add(broken, 1, s);
    const beside = mx.mul(good, 2, s);
    const error = failure(() => mx.evaluate([after]));
    expect(error).toMatchObject({ code: 'MLX_ERROR', name: 'TidemarkError' });
    expect(error.message).toContain('failed on the stream');
    for (const t of [input, broken, after, beside]) {
      expect(mx.status(t)).toBe('poisoned');
      expect(failure(() => mx.add(t, 1, s)).code).toBe('TENSOR_POISONED');
      expect(failure(() => mx.evaluate([t])).code).toBe('TENSOR_POISONED');
      expect(failure(() => mx.wait(t)).code).toBe('TENSOR_POISONED');
      expect(failure(() => mx.readBytes(t, 0, new Uint8Array(4))).code).toBe('TENSOR_POISONED');
      expect(failure(() => mx.itemNumber(t)).code).toBe('TENSOR_POISONED');
      expect(mx.shapeOf(t)).toEqual([4]);
      mx.release(t);
    }
    expect(mx.status(good)).toBe('available');
    expect([...mx.toFloat32Array(good)]).toEqual([1, 1, 1, 1]);
  });

  test('is followed by steps that work', () => {
    expect(failure(() => mx.evaluate([failing(ones())])).code).toBe('MLX_ERROR');
    const fresh = mx.add(ones(), 1, s);
    mx.evaluate([fresh]);
    expect([...mx.toFloat32Array(fresh)]).toEqual([2, 2, 2, 2]);
  });

  test.each<[string, (t: Tensor) => void]>([
    ['wait', (t) => mx.wait(t)],
    ['synchronize', () => mx.synchronize(s)],
    ['itemNumber', (t) => void mx.itemNumber(t)],
  ])('of work scheduled before is delivered by %s', (_, ask) => {
    const broken = failingLater(mx.full([1], 1, 'float32', s));
    // Not named, but of the same step.
    const sibling = mx.full([1], 5, 'float32', s);
    mx.asyncEvaluate([broken, sibling]);
    expect(failure(() => ask(broken)).code).toBe('MLX_ERROR');
    expect(mx.status(broken)).toBe('poisoned');
    expect(mx.status(sibling)).toBe('poisoned');
  });

  test('that was never asked for is not lost by reading', async () => {
    const broken = failingLater(ones());
    mx.asyncEvaluate([broken]);
    // However long it takes: reading either says "not yet" or delivers the error, and never gives bytes.
    const codes = new Set<string>();
    for (let i = 0; i < 200 && mx.status(broken) !== 'poisoned'; i++) {
      codes.add(failure(() => mx.readBytes(broken, 0, new Uint8Array(4))).code);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    expect(mx.status(broken)).toBe('poisoned');
    codes.delete('INVALID_ARGUMENT');
    expect([...codes]).toEqual(['MLX_ERROR']);
  });
});

test('an error while scheduling poisons too', () => {
  const lazy = native.testFailWhenScheduled!(ones(), s);
  const error = failure(() => mx.asyncEvaluate([lazy]));
  expect(error.message).toContain('failed while scheduling');
  expect(mx.status(lazy)).toBe('poisoned');
});

test('a later step in flight does not make an earlier failure good', () => {
  const broken = failingLater(ones());
  mx.asyncEvaluate([broken]);
  const next = ones();
  expect(() => mx.evaluate([next])).toThrow();
  expect(mx.status(broken)).toBe('poisoned');
  expect(mx.status(next)).toBe('poisoned');
});

test('waiting for step 1 says nothing about step 2', () => {
  const first = ones();
  mx.asyncEvaluate([first]);
  const slow = native.testDelay!(ones(), 50, s);
  const second = failing(slow);
  mx.asyncEvaluate([second]);
  mx.wait(first);
  expect(mx.status(first)).toBe('available');
  expect(failure(() => mx.synchronize(s)).code).toBe('MLX_ERROR');
  expect(mx.status(slow)).toBe('poisoned');
  expect(mx.status(second)).toBe('poisoned');
  expect(mx.status(first)).toBe('available');
});

test('building with wrong shapes poisons nothing', () => {
  const good = ones();
  expect(failure(() => mx.matmul(good, mx.zeros([3, 3], 'float32', s), s)).code).toBe('MLX_ERROR');
  mx.evaluate([good]);
  expect(mx.status(good)).toBe('available');
});

test('exceptions that are not std::runtime_error of MLX keep their text', () => {
  expect(failure(() => native.testThrow!('something odd'))).toMatchObject({ code: 'MLX_ERROR', message: 'testThrow: something odd' });
  expect(failure(() => native.testThrow!('[malloc] Unable to allocate 5 bytes.')).code).toBe('MEMORY_LIMIT');
  expect(failure(() => native.testThrow!('cudaErrorIllegalAddress')).code).toBe('DEVICE_LOST');
});
