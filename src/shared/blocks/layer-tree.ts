/**
 * `tm.layers`: what a file says about its layers besides tensor bytes, as JSON. Per layer class name, how it is stored,
 * token range, meta scalars and the tree of elements, in which tensors are named and every empty place is explicit.
 *
 * Numbers that JSON cannot hold (NaN, infinities, -0) are written as {"n": "NaN"} and so on, so that they come back equal.
 */
import { DTYPES, type Dtype, type LayerState, type StateElement, type TensorBytes } from '../layer-state.ts';

type JsonNumber = number | { n: string };
/** A tensor place: its name, and its own type where the file had to store it under another one of the same width. */
interface TensorRef {
  t: string;
  as?: Dtype;
}
type JsonElement = TensorRef | JsonNumber | null | JsonElement[];
interface JsonLayer {
  class: string;
  stored: LayerState['stored'];
  range?: [number, number];
  meta: (string | boolean | JsonNumber)[];
  elements: JsonElement[];
}

/** A tensor as the file holds it. */
export interface NamedTensor {
  readonly name: string;
  readonly storedDtype: Dtype;
  readonly source: TensorBytes;
}

function encodeNumber(value: number): JsonNumber {
  return Number.isFinite(value) && !Object.is(value, -0) ? value : { n: Object.is(value, -0) ? '-0' : String(value) };
}

function decodeNumber(value: unknown): number | null {
  if (typeof value === 'number') return value;
  const text = typeof value === 'object' && value !== null && 'n' in value ? value.n : null;
  return text === 'NaN' || text === 'Infinity' || text === '-Infinity' || text === '-0' ? Number(text) : null;
}

/** MLX's loader knows no F64; its bits travel as U64 and the tree keeps the type. */
function storedDtype(dtype: Dtype): Dtype {
  return dtype === 'F64' ? 'U64' : dtype;
}

function isTensor(element: StateElement): element is TensorBytes {
  return typeof element === 'object' && element !== null && !Array.isArray(element);
}

/** The JSON text of `layers`, and their tensors in file order. */
export function encodeLayers(layers: readonly LayerState[]): { json: string; tensors: NamedTensor[] } {
  const tensors: NamedTensor[] = [];
  const encode = (element: StateElement, path: string): JsonElement => {
    if (element === null) return null;
    if (typeof element === 'number') return encodeNumber(element);
    if (!isTensor(element)) return (element as readonly StateElement[]).map((child, i) => encode(child, `${path}.${i}`));
    const stored = storedDtype(element.dtype);
    tensors.push({ name: path, storedDtype: stored, source: element });
    return stored === element.dtype ? { t: path } : { t: path, as: element.dtype };
  };
  const json = layers.map((layer, i): JsonLayer => {
    const elements = layer.elements.map((element, k) => encode(element, `layers.${i}.${k}`));
    const meta = layer.meta.map((value) => (typeof value === 'number' ? encodeNumber(value) : value));
    const range = layer.range === undefined ? {} : { range: [layer.range[0], layer.range[1]] as [number, number] };
    return { class: layer.className, stored: layer.stored, ...range, meta, elements };
  });
  return { json: JSON.stringify(json), tensors };
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/**
 * Layers again, from JSON text; `tensor` resolves a name to its bytes and is asked once for each.
 * Returns null when the text is not what `encodeLayers` writes or names a tensor that is not there.
 */
export function decodeLayers(text: string, tensor: (name: string, as: Dtype | null) => TensorBytes | null): LayerState[] | null {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return null;
  }
  if (!Array.isArray(parsed)) return null;
  const bad = Symbol('bad');
  const decode = (value: unknown): StateElement | typeof bad => {
    if (value === null) return null;
    if (Array.isArray(value)) {
      const children = value.map(decode);
      return children.includes(bad) ? bad : (children as StateElement[]);
    }
    if (typeof value === 'object' && 't' in value) {
      const as = 'as' in value ? value.as : null;
      if (typeof value.t !== 'string' || (as !== null && !DTYPES.includes(as as Dtype))) return bad;
      return tensor(value.t, as as Dtype | null) ?? bad;
    }
    return decodeNumber(value) ?? bad;
  };
  const layers: LayerState[] = [];
  for (const raw of parsed as Partial<Record<keyof JsonLayer, unknown>>[]) {
    if (typeof raw !== 'object' || raw === null) return null;
    const { class: className, stored, range, meta, elements } = raw;
    if (typeof className !== 'string' || (stored !== 'slice' && stored !== 'whole' && stored !== 'none')) return null;
    if (!Array.isArray(meta) || !Array.isArray(elements)) return null;
    const metaValues = meta.map((value: unknown) => (typeof value === 'string' || typeof value === 'boolean' ? value : decodeNumber(value)));
    const elementValues = elements.map(decode);
    if (metaValues.includes(null) || elementValues.includes(bad)) return null;
    const layer: LayerState = { className, stored, meta: metaValues as LayerState['meta'], elements: elementValues as StateElement[] };
    if (range === undefined) layers.push(layer);
    else if (Array.isArray(range) && range.length === 2 && isCount(range[0]) && isCount(range[1]) && range[0] <= range[1])
      layers.push({ ...layer, range: [range[0], range[1]] });
    else return null;
  }
  return layers;
}
