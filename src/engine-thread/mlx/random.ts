import { mlx } from './binding.ts';

const native = mlx();

/** Random numbers from explicit keys only: MLX's default key is seeded by time, and all threads would draw the same numbers. */
export const random = {
  /** A key from a seed (a safe integer). */
  key: native.randomKey,
  /** `count` keys, stacked along axis 0. */
  split: native.randomSplit,
  uniform: native.randomUniform,
  normal: native.randomNormal,
  /** Indices drawn by softmax(logits) along the axis. */
  categorical: native.randomCategorical,
};
