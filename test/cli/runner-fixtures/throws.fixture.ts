import { expect, test } from 'vitest';

test('good', async () => {
  // An error outside every test: the run must not count as passed.
  setTimeout(() => {
    throw new Error('outside');
  }, 0);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(1).toBe(1);
});
