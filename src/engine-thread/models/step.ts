/** What all layers of one step share. */
import * as mx from '../mlx/ops.ts';
import type { Device, Stream, Tensor } from '../mlx/types.ts';

export interface Step {
  readonly s: Stream;
  readonly device: Device;
  /** Sequences in the step. */
  readonly batch: number;
  /** New tokens of each sequence. */
  readonly length: number;
  /** batch * length: hidden states are [rows, hidden], one row per token, so that products need no reshaping. */
  readonly rows: number;
}

/** Columns [from, to) of x [rows, n]. */
export function columns(x: Tensor, rows: number, from: number, to: number, s: Stream): Tensor {
  return mx.slice(x, [0, from], [rows, to], s);
}
