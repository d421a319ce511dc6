// The chunked form must equal the rule token by token for any input: repeated keys, no forgetting, total forgetting, any length.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { scenario } from './scenario.ts';

interface Case {
  batch: number;
  keyHeads: number;
  valueHeads: number;
  keyDim: number;
  valueDim: number;
  length: number;
  chunk: number;
  /** Largest forgetting per token, as a negated logarithm. */
  gate: number;
  /** Least strength of writing. */
  beta: number;
  /** 0: keys are independent; 1: all keys are the same. */
  similar: number;
  seed: number;
}
interface Errors {
  chunkedOut: number;
  chunkedState: number;
  steppedOut: number;
  steppedState: number;
}

const anyCase: fc.Arbitrary<Case> = fc
  .record({
    batch: fc.constantFrom(1, 1, 2),
    keyHeads: fc.constantFrom(1, 2),
    repeat: fc.constantFrom(1, 2, 3),
    keyDim: fc.constantFrom(8, 16, 24),
    valueDim: fc.constantFrom(8, 16),
    chunk: fc.constantFrom(1, 2, 4, 8, 32, 64),
    chunks: fc.integer({ min: 1, max: 3 }),
    gate: fc.constantFrom(0, 1e-3, 0.1, 2, 30, 200),
    beta: fc.constantFrom(0, 0.5, 1),
    similar: fc.constantFrom(0, 0.5, 0.99, 1),
    seed: fc.integer({ min: 1, max: 2 ** 31 }),
  })
  .map(({ repeat, chunks, ...rest }) => ({ ...rest, valueHeads: rest.keyHeads * repeat, length: rest.chunk * chunks }));

function expectClose(errors: Errors[], cases: Case[]): void {
  errors.forEach((error, i) => {
    const shown = JSON.stringify({ ...cases[i], ...error });
    for (const value of Object.values(error)) expect(value, shown).toBeLessThan(1e-5);
  });
}

test('random cases', async () => {
  const cases = fc.sample(anyCase, { numRuns: 150, seed: 20261129 });
  expectClose(await scenario<Errors[]>('delta-scenarios.mjs', 'compare', cases), cases);
});

test('1,024 tokens of one repeated key that is never forgotten', async () => {
  const base = { batch: 1, keyHeads: 1, valueHeads: 2, keyDim: 64, valueDim: 64, length: 1024, gate: 0, beta: 1, similar: 1, seed: 3 };
  const cases = [32, 64].map((chunk) => ({ ...base, chunk }));
  expectClose(await scenario<Errors[]>('delta-scenarios.mjs', 'compare', cases), cases);
});

test.each([
  { n: 64, value: 1 }, // powers of A grow beyond any precision; the inverse itself is tame
  { n: 64, value: 0.999 },
  { n: 32, seed: 5 },
  { n: 4, seed: 6 },
  { n: 2, seed: 7 },
  { n: 1, seed: 8 },
])('inverse of the unit triangle $n, $value', async (data) => {
  expect(await scenario<number>('delta-scenarios.mjs', 'inverseResidual', data)).toBeLessThan(data.value === undefined ? 1e-3 : 1e-5);
});
