/** An app's own named byte arrays as layers, and back. One array is one layer; its name travels in the layer's metadata. */
import { TidemarkError } from '../shared/errors.ts';
import { DTYPE_BYTES, type Dtype, isTensorBytes, type LayerState } from '../shared/layer-state.ts';

export interface NamedArray {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Row-major; exactly as many bytes as `shape` and `dtype` say. May lie in a SharedArrayBuffer. */
  readonly bytes: Uint8Array;
}

export type NamedArrays = Readonly<Record<string, NamedArray>>;

const CLASS_NAME = 'NamedArray';

/** Rows of the block (`rows`) or whole state (`state`), in the order of their names. */
export function layersOf(arrays: NamedArrays, stored: 'slice' | 'whole', range: readonly [number, number]): LayerState[] {
  return Object.keys(arrays)
    .sort()
    .map((name) => {
      const { dtype, shape, bytes } = arrays[name]!;
      const expected = shape.reduce((product, n) => product * n, DTYPE_BYTES[dtype] ?? Number.NaN);
      if (bytes.byteLength !== expected) {
        throw new TidemarkError('INVALID_ARGUMENT', `array '${name}': ${dtype} [${shape.join(', ')}] takes ${expected} bytes, but has ${bytes.byteLength}.`, {
          details: { name, dtype, shape: [...shape], expected, received: bytes.byteLength },
        });
      }
      const element = {
        dtype,
        shape,
        byteLength: bytes.byteLength,
        copyTo: (target: Uint8Array, from: number) => target.set(bytes.subarray(from, from + target.length)),
      };
      return { className: CLASS_NAME, stored, ...(stored === 'slice' ? { range } : {}), meta: [name], elements: [element] };
    });
}

/** Places that the other part fills: the store knows by them that a block has state as well. */
export function placeholders(arrays: NamedArrays): LayerState[] {
  return Object.keys(arrays)
    .sort()
    .map((name) => ({ className: CLASS_NAME, stored: 'none' as const, meta: [name], elements: [] }));
}

/** Private copies of what a part holds, by name. */
export function arraysOf(layers: readonly LayerState[]): Record<string, NamedArray> {
  const arrays: Record<string, NamedArray> = {};
  for (const { stored, meta, elements } of layers) {
    const [element] = elements;
    if (stored === 'none' || element === undefined || !isTensorBytes(element)) continue;
    const bytes = new Uint8Array(element.byteLength);
    element.copyTo(bytes, 0);
    arrays[String(meta[0])] = { dtype: element.dtype, shape: element.shape, bytes };
  }
  return arrays;
}
