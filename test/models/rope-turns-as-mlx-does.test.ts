// The rotation used on CPU must be MLX's: partial widths, far positions, rows at different positions, scaled positions.
import { expect, test } from 'vitest';
import { scenario } from './scenario.ts';

test('differences to MLX stay within float32 angles', async () => {
  const cases = [
    { offsets: [0], length: 5, headDim: 32, dims: 8, base: 100_000, scale: 1 },
    { offsets: [7], length: 1, headDim: 64, dims: 64, base: 10_000, scale: 1 },
    { offsets: [1000, 3, 0], length: 2, headDim: 64, dims: 16, base: 100_000, scale: 1 },
    { offsets: [512], length: 300, headDim: 32, dims: 8, base: 100_000, scale: 0.25 },
    { offsets: [32_000], length: 3, headDim: 64, dims: 16, base: 10_000_000, scale: 1 },
  ];
  const found = await scenario<number[]>('rope-scenarios.mjs', 'differences', cases);
  // An angle of 32,000 radians has a float32 step of 0.002.
  for (const [i, difference] of found.entries()) expect.soft(difference, JSON.stringify(cases[i])).toBeLessThan(i === 4 ? 5e-3 : 1e-4);
});
