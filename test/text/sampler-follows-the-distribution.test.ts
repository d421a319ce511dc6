// Choices must follow the logits and the seed alone, and each filter must cut exactly where a full sort would.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { uniformAt } from '../../src/engine-thread/text/random.ts';
import { argmax, Sampler } from '../../src/engine-thread/text/sampler.ts';
import { resolveSampling, type SamplingInput } from '../../src/engine-thread/text/sampling.ts';

const params = (input: SamplingInput) => resolveSampling({ seed: 1, ...input }, {}, 0);
const sampler = (input: SamplingInput) => new Sampler(params(input));

/** How often each id comes in `n` draws. */
function counts(input: SamplingInput, logits: number[], n = 20_000): number[] {
  const pick = sampler(input);
  const found = logits.map(() => 0);
  for (let i = 0; i < n; i++) found[pick.sample(Float32Array.from(logits), [], i)]!++;
  return found;
}

/** Within five standard deviations of n draws with these probabilities. */
function expectFrequencies(found: number[], weights: number[]) {
  const n = found.reduce((a, b) => a + b);
  const total = weights.reduce((a, b) => a + b);
  found.forEach((count, id) => {
    const p = weights[id]! / total;
    if (p === 0) expect(count).toBe(0);
    else expect(Math.abs(count - n * p)).toBeLessThanOrEqual(5 * Math.sqrt(n * p * (1 - p)) + 1e-9);
  });
}

const LOGITS = [2, 1, 0, -1, 1.5, -Infinity];
const weights = (temperature: number) => LOGITS.map((l) => Math.exp((l - 2) / temperature));

describe('distribution', () => {
  test.each([0.5, 1, 2])('temperature %d', (temperature) => {
    expectFrequencies(counts({ temperature }, LOGITS), weights(temperature));
  });

  test('topK keeps the k best', () => {
    const w = weights(1);
    expectFrequencies(counts({ temperature: 1, topK: 3 }, LOGITS), [w[0]!, w[1]!, 0, 0, w[4]!, 0]);
  });

  test('topP keeps the fewest that reach the mass', () => {
    const w = weights(1); // shares: .51 .19 .07 .03 .31
    const total = w.reduce((a, b) => a + b);
    const p = (w[0]! + w[4]!) / total;
    expectFrequencies(counts({ temperature: 1, topP: p - 0.001 }, LOGITS), [w[0]!, 0, 0, 0, w[4]!, 0]);
    expectFrequencies(counts({ temperature: 1, topP: p + 0.001 }, LOGITS), [w[0]!, w[1]!, 0, 0, w[4]!, 0]);
  });

  test('minP keeps those at least that fraction of the best', () => {
    const w = weights(1);
    const cut = Math.exp(-1) - 0.001;
    expectFrequencies(counts({ temperature: 1, minP: cut }, LOGITS), [w[0]!, w[1]!, 0, 0, w[4]!, 0]);
    expectFrequencies(counts({ temperature: 1, minP: cut, topK: 2 }, LOGITS), [w[0]!, 0, 0, 0, w[4]!, 0]);
  });

  test('the repetition penalty divides positive and multiplies negative logits of recent tokens only', () => {
    const found = sampler({ temperature: 1, repetitionPenalty: 2, repetitionContext: 2 });
    const logits = Float32Array.from(LOGITS);
    found.sample(logits, [1, 0, 3], 0);
    expect([...logits]).toEqual([1, 1, 0, -2, 1.5, -Infinity]);
  });
});

describe('filters against a full sort', () => {
  /** The straightforward version: everything sorted, then cut. */
  function candidates(
    logits: number[],
    { temperature, topK, topP, minP }: Required<Pick<SamplingInput, 'temperature' | 'topK' | 'topP' | 'minP'>>,
  ): Set<number> {
    const top = Math.max(...logits);
    let list = logits.map((l, id) => ({ id, l, w: Math.exp((l - top) / temperature) })).sort((a, b) => b.l - a.l || a.id - b.id);
    if (topK > 0) list = list.slice(0, topK);
    if (topP < 1) {
      const total = list.reduce((sum, c) => sum + c.w, 0);
      let mass = 0;
      const end = list.findIndex((c) => {
        mass += c.w;
        return mass >= topP * total;
      });
      if (end >= 0) list = list.slice(0, end + 1);
    }
    return new Set(list.filter((c) => c.w >= minP && c.w > 0).map((c) => c.id));
  }

  test('every draw is a candidate, and every likely candidate is drawn', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: -40, max: 40 }), { minLength: 2, maxLength: 60 }),
        fc.record({
          temperature: fc.constantFrom(0.3, 1, 3),
          topK: fc.nat({ max: 20 }),
          topP: fc.constantFrom(1, 0.999, 0.9, 0.5, 0.01),
          minP: fc.constantFrom(0, 0.05, 0.5),
        }),
        (logits, options) => {
          const allowed = candidates(logits, options);
          const pick = sampler(options);
          const seen = new Set<number>();
          for (let i = 0; i < 60; i++) {
            const id = pick.sample(Float32Array.from(logits), [], i);
            expect(allowed).toContain(id);
            seen.add(id);
          }
          if (allowed.size === 1) expect(seen.size).toBe(1);
        },
      ),
      { numRuns: 300, seed: 20261129 },
    );
  });
});

describe('seed', () => {
  test('the n-th draw depends on the seed and n alone, not on the draws before', () => {
    const logits = () => Float32Array.from({ length: 100 }, (_, i) => Math.sin(i));
    const a = Array.from({ length: 50 }, (_, i) => sampler({ temperature: 1, seed: 9 }).sample(logits(), [], i));
    const pick = sampler({ temperature: 1, seed: 9 });
    const backwards = Array.from({ length: 50 }, (_, i) => pick.sample(logits(), [], 49 - i)).reverse();
    expect(backwards).toEqual(a);
    const other = Array.from({ length: 50 }, (_, i) => sampler({ temperature: 1, seed: 10 }).sample(logits(), [], i));
    expect(other).not.toEqual(a);
  });

  test('draws are uniform, also for neighbouring and for large seeds', () => {
    const bins = new Array<number>(20).fill(0);
    for (let seed = 0; seed < 100; seed++) for (let n = 0; n < 200; n++) bins[Math.floor(uniformAt(seed + (seed % 2) * 2 ** 40, n) * 20)]!++;
    const chi = bins.reduce((sum, count) => sum + (count - 1000) ** 2 / 1000, 0);
    expect(chi).toBeLessThan(50); // 19 degrees of freedom: one in 10,000
    expect(uniformAt(2 ** 53 - 1, 2 ** 53 - 1)).toBeLessThan(1);
  });
});

describe('greedy', () => {
  test('takes the best, the first among equals, and needs no logits on the host', () => {
    expect(sampler({ temperature: 0 }).isArgmax).toBe(true);
    expect(sampler({ temperature: 0, repetitionPenalty: 1.1 }).isArgmax).toBe(false);
    expect(argmax(Float32Array.of(1, 3, 3, 2))).toBe(1);
    expect(sampler({ temperature: 0 }).sample(Float32Array.of(1, 3, 3, 2), [], 0)).toBe(1);
  });

  test.each([[[Number.NaN, 1]], [[1, Number.NaN]], [[-Infinity, -Infinity]], [[1, Infinity]]])('%j is an error, not an answer', (row) => {
    expect(() => argmax(Float32Array.from(row))).toThrow(expect.objectContaining({ code: 'MLX_ERROR' }));
  });
});

describe('options', () => {
  test.each([
    ['temperature', -0.1],
    ['temperature', Number.NaN],
    ['temperature', '1'],
    ['topK', 1.5],
    ['topK', -1],
    ['topP', 0],
    ['topP', 1.01],
    ['minP', -1],
    ['minP', 2],
    ['repetitionPenalty', 0],
    ['repetitionPenalty', Infinity],
    ['repetitionContext', -1],
    ['seed', 1.5],
    ['seed', -1],
    ['seed', null],
  ])('%s = %j is INVALID_ARGUMENT naming field, expected and received', (field, value) => {
    let caught: { code?: string; details?: Record<string, unknown>; message: string } | undefined;
    try {
      params({ [field]: value } as SamplingInput);
    } catch (error) {
      caught = error as typeof caught;
    }
    expect(caught).toMatchObject({ code: 'INVALID_ARGUMENT', details: { field } });
    expect(caught!.message).toContain(`${field}: expected`);
    expect(caught!.details).toHaveProperty('received');
  });

  test('the model gives defaults, the request overrides them', () => {
    const model = { do_sample: true, temperature: 0.7, top_p: 0.95, top_k: 20, min_p: 0.1, repetition_penalty: 1.05 };
    expect(resolveSampling({}, model, 5)).toEqual({
      temperature: 0.7,
      topP: 0.95,
      topK: 20,
      minP: 0.1,
      repetitionPenalty: 1.05,
      repetitionContext: 64,
      seed: 5,
    });
    expect(resolveSampling({ temperature: 0, seed: 3 }, model, 5)).toMatchObject({ temperature: 0, topP: 0.95, seed: 3 });
    expect(resolveSampling({}, { ...model, do_sample: false }, 5).temperature).toBe(0);
    expect(resolveSampling({}, {}, 5)).toMatchObject({ temperature: 0, topP: 1, topK: 0 });
  });

  test('a default that is not valid here does not make requests fail', () => {
    expect(resolveSampling({}, { temperature: -3, top_p: 7, top_k: 'many' }, 5)).toMatchObject({ temperature: 0, topP: 1, topK: 0 });
  });
});
