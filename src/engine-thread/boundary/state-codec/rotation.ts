/**
 * The randomized Hadamard rotation of one row: signs from a hash, then the fast Walsh-Hadamard transform, times
 * 1 / sqrt(width). It is orthogonal: the inverse is the transform again, then the same signs.
 *
 * The signs must be the same in every process that reads a file, so they come from SHA-256, never from a random generator.
 */
import { createHash } from 'node:crypto';

/** The only seed there is; files name it, so that another one is refused instead of misread. */
export const ROTATION_SEED = 0;

export function isRotatable(width: number): boolean {
  return Number.isSafeInteger(width) && width > 0 && width <= 2 ** 30 && (width & (width - 1)) === 0;
}

const known = new Map<number, Float64Array>();

/** Sign / sqrt(width) for each place. One array per width and thread. */
export function rotationFactors(width: number): Float64Array {
  let factors = known.get(width);
  if (factors === undefined) {
    factors = new Float64Array(width);
    const size = 1 / Math.sqrt(width);
    for (let from = 0; from < width; from += 256) {
      const bits = createHash('sha256')
        .update(`tidemark-rotation-v1:${ROTATION_SEED}:${width}:${from / 256}`)
        .digest();
      for (let i = from; i < Math.min(width, from + 256); i++) factors[i] = (bits[(i - from) >> 3]! >> ((i - from) & 7)) & 1 ? -size : size;
    }
    known.set(width, factors);
  }
  return factors;
}

/**
 * In place; `row.length` is a power of two. Two stages at a time, which halves the passes over the row. Float64, so that the
 * rotation itself adds no error worth speaking of.
 */
export function hadamard(row: Float64Array): void {
  const width = row.length;
  let half = 1;
  for (; 4 * half <= width; half *= 4) {
    for (let base = 0; base < width; base += 4 * half) {
      for (let i = base; i < base + half; i++) {
        const a = row[i]!;
        const b = row[i + half]!;
        const c = row[i + 2 * half]!;
        const d = row[i + 3 * half]!;
        const ab = a + b;
        const cd = c + d;
        const aMinusB = a - b;
        const cMinusD = c - d;
        row[i] = ab + cd;
        row[i + half] = aMinusB + cMinusD;
        row[i + 2 * half] = ab - cd;
        row[i + 3 * half] = aMinusB - cMinusD;
      }
    }
  }
  // An odd number of stages leaves one.
  if (half < width) {
    for (let i = 0; i < half; i++) {
      const a = row[i]!;
      const b = row[i + half]!;
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
}
