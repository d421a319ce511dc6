/**
 * Every op of the native layer takes its stream, and a tensor, a stream and a number are three things. Read by tsc only.
 */
import * as mlx from '../../dist/engine-thread/mlx/ops.js';
import type { Stream, Tensor } from '../../dist/engine-thread/mlx/types.js';

export function right(a: Tensor, b: Tensor, s: Stream): Tensor[] {
  return [mlx.add(a, b, s), mlx.add(a, 1, s), mlx.matmul(a, b, s), mlx.softmax(a, -1, true, s), mlx.reshape(a, [1, 2], s)];
}

export function wrong(a: Tensor, b: Tensor, s: Stream): void {
  // @ts-expect-error: the stream is missing
  mlx.add(a, b);
  // @ts-expect-error: the stream is missing
  mlx.matmul(a, b);
  // @ts-expect-error: the stream is missing
  mlx.reshape(a, [1, 2]);
  // @ts-expect-error: a number is no stream
  mlx.add(a, b, 0);
  // @ts-expect-error: a tensor is no stream
  mlx.add(a, b, a);
  // @ts-expect-error: a stream is no tensor
  mlx.matmul(s, b, s);
  // @ts-expect-error: a number is no tensor here
  mlx.matmul(a, 1, s);
}
