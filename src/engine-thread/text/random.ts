/**
 * Counter-based random numbers: the n-th draw of a seed depends on (seed, n) alone.
 *
 * An answer that is resumed at token n therefore draws what the uninterrupted one would have drawn, with no generator
 * state to store. Two rounds of a 32-bit mixer over seed and counter; not for cryptography.
 */

const TWO_POW_32 = 2 ** 32;

function mix(x: number): number {
  let h = x | 0;
  h = Math.imul(h ^ (h >>> 16), 0x21f0aaad);
  h = Math.imul(h ^ (h >>> 15), 0x735a2d97);
  return (h ^ (h >>> 15)) >>> 0;
}

/** Uniform in [0, 1) with 53 bits. `seed` and `counter` are integers from 0 to 2^53 - 1. */
export function uniformAt(seed: number, counter: number): number {
  const seedLow = seed >>> 0;
  const seedHigh = Math.floor(seed / TWO_POW_32);
  const countLow = counter >>> 0;
  const countHigh = Math.floor(counter / TWO_POW_32);
  const key = mix(mix(seedLow ^ 0x9e3779b9) ^ mix(seedHigh + 0x7f4a7c15));
  const base = mix(key ^ mix(countLow + 0x6a09e667) ^ mix(countHigh + 0x3c6ef372));
  const high = mix(base + 0x510e527f) >>> 5; // 27 bits
  const low = mix(mix(base ^ key) + 0x1f83d9ab) >>> 6; // 26 bits
  return (high * 0x4000000 + low) / 2 ** 53;
}
