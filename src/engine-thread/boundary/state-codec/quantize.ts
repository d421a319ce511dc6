/** The arithmetic of the codecs: plain loops over typed arrays, one thread, no allocation per row. */
import { hadamard, rotationFactors } from './rotation.ts';

/** What stands in the way: a value that is not finite, or a row whose scale is not. */
export type Unencodable = 'value' | 'scale';

const SMALLEST_NORMAL = 2 ** -126;
/** Adding and subtracting it rounds to the nearest integer, ties to even. */
const ROUND = 1.5 * 2 ** 52;

let row = new Float64Array(0);

function rowOf(width: number): Float64Array {
  if (row.length !== width) row = new Float64Array(width);
  return row;
}

/** Rows of `width` float32 values to integers of at most `limit`, and one scale for each row. */
export function quantizeRows(
  values: Float32Array,
  width: number,
  limit: number,
  rotated: boolean,
  out: Int8Array | Int16Array,
  scales: Float32Array,
): Unencodable | null {
  const work = rowOf(width);
  const factors = rotated ? rotationFactors(width) : null;
  for (let r = 0; r < scales.length; r++) {
    const base = r * width;
    // x - x is 0 for every finite x and NaN for the others.
    let finite = 0;
    for (let i = 0; i < width; i++) {
      const value = values[base + i]!;
      finite += value - value;
      work[i] = value;
    }
    if (finite !== 0) return 'value';
    if (factors !== null) {
      for (let i = 0; i < width; i++) work[i] = work[i]! * factors[i]!;
      hadamard(work);
    }
    let largest = 0;
    for (let i = 0; i < width; i++) largest = Math.max(largest, Math.abs(work[i]!));
    const scale = largest === 0 ? 1 : Math.max(Math.fround(largest / limit), SMALLEST_NORMAL);
    // Rotated values may leave float32's range, and so may the largest one by the rounding of its scale.
    if (!Number.isFinite(Math.fround(scale * limit))) return 'scale';
    scales[r] = scale;
    const factor = 1 / scale;
    for (let i = 0; i < width; i++) out[base + i] = work[i]! * factor + ROUND - ROUND;
  }
  return null;
}

/** The inverse of `quantizeRows`, into float32. */
export function dequantizeRows(values: Int8Array | Int16Array, scales: Float32Array, width: number, rotated: boolean, out: Float32Array): void {
  const work = rowOf(width);
  const factors = rotated ? rotationFactors(width) : null;
  for (let r = 0; r < scales.length; r++) {
    const base = r * width;
    const scale = scales[r]!;
    for (let i = 0; i < width; i++) work[i] = values[base + i]! * scale;
    if (factors === null) {
      for (let i = 0; i < width; i++) out[base + i] = work[i]!;
      continue;
    }
    hadamard(work);
    for (let i = 0; i < width; i++) out[base + i] = work[i]! * factors[i]!;
  }
}

/** Nearest bfloat16, ties to even, on the bits. */
export function roundToBfloat16(values: Float32Array, out: Uint16Array): Unencodable | null {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  let overflow = false;
  for (let i = 0; i < bits.length; i++) {
    const word = bits[i]!;
    const rounded = (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
    out[i] = rounded;
    // Infinity and NaN have all exponent bits set; so has what rounds up beyond the largest value.
    overflow = overflow || (rounded & 0x7f80) === 0x7f80 || (word & 0x7f800000) === 0x7f800000;
  }
  return overflow ? 'value' : null;
}

export function expandBfloat16(values: Uint16Array, out: Float32Array): void {
  const bits = new Uint32Array(out.buffer, out.byteOffset, out.length);
  for (let i = 0; i < bits.length; i++) bits[i] = values[i]! << 16;
}

export function allFinite(values: Float32Array): boolean {
  let finite = 0;
  for (let i = 0; i < values.length; i++) finite += values[i]! - values[i]!;
  return finite === 0;
}
