/**
 * Ratios on a noisy machine: A and B run in interleaved pairs (order alternating), each pair gives one ratio, the
 * figure is the median with a bootstrap interval. An A/A pair beside it shows what the method itself scatters.
 */

/** Median of numbers; the mean of the middle two for an even count. */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export function percentile(values, p) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))];
}

/** Small seeded generator, so that the interval of one set of figures is always the same. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Token ids of a prompt, the same for the same seed. Ids below 16 are left out: they may be special. */
export function seededTokens(count, seed, vocabulary = 4096) {
  const random = generator(seed);
  return Array.from({ length: count }, () => 16 + Math.floor(random() * (vocabulary - 16)));
}

export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** 95 % bootstrap interval of the median. */
export function bootstrap(values, rounds = 2000) {
  const random = generator(20260101);
  const medians = [];
  for (let i = 0; i < rounds; i++) medians.push(median(values.map(() => values[Math.floor(random() * values.length)])));
  medians.sort((a, b) => a - b);
  return [medians[Math.floor(rounds * 0.025)], medians[Math.floor(rounds * 0.975)]];
}

/** Ratio of one statistic of two interleaved groups, with its 95 % bootstrap interval. */
export function ratioOf(statistic, a, b, rounds = 2000) {
  const random = generator(20260101);
  const resampled = (values) => statistic(values.map(() => values[Math.floor(random() * values.length)]));
  const found = Array.from({ length: rounds }, () => resampled(a) / resampled(b)).sort((x, y) => x - y);
  return {
    value: round(statistic(a) / statistic(b)),
    low: round(found[Math.floor(rounds * 0.025)]),
    high: round(found[Math.floor(rounds * 0.975)]),
    samples: a.length,
  };
}

export function ratioOfMeans(a, b, rounds = 2000) {
  const { value, ...interval } = ratioOf(mean, a, b, rounds);
  return { mean: value, ...interval };
}

/** Summary of per-pair ratios. */
export function summarize(ratios) {
  const [low, high] = bootstrap(ratios);
  return { median: round(median(ratios)), low: round(low), high: round(high), pairs: ratios.length };
}

/**
 * Runs `a` and `b` (async functions that return a figure) in interleaved pairs and returns the ratios a/b of each
 * pair, plus those of `a` against itself.
 */
export async function pairs(a, b, count, onPair = (_index, _left, _right) => undefined) {
  const found = { a: [], b: [], ratios: [], self: [] };
  for (let i = 0; i < count; i++) {
    const first = i % 2 === 0 ? a : b;
    const second = i % 2 === 0 ? b : a;
    const x = await first();
    const y = await second();
    const [left, right] = i % 2 === 0 ? [x, y] : [y, x];
    const again = await a();
    found.a.push(left);
    found.b.push(right);
    found.ratios.push(left / right);
    found.self.push(again / left);
    onPair(i, left, right);
  }
  return found;
}

export function round(value, digits = 3) {
  return Number(value.toPrecision(digits + 1));
}

/** One line of a report: the ratio, its floor, and whether the whole interval is on the right side. */
export function verdict(name, ratios, self, floor, unit) {
  const ratio = summarize(ratios);
  return { name, unit, ratio, selfRatio: summarize(self), floor, ok: floor.atLeast !== undefined ? ratio.high >= floor.atLeast : ratio.low <= floor.atMost };
}
