/**
 * `tm.layers`: what a file says about its layers besides tensor bytes, as JSON. Per layer class name, how it is stored,
 * token range, meta scalars and the tree of elements, in which tensors are named and every empty place is explicit.
 *
 * Numbers that JSON cannot hold (NaN, infinities, -0) are written as {"n": "NaN"} and so on, so that they come back equal.
 */
import { DTYPES, type Dtype, type HeldRows, type LayerState, type StateElement, type SubState, type TensorBytes, type TensorEncoding } from '../layer-state.ts';

type JsonNumber = number | { n: string };
/**
 * A tensor place: its name; its own type where the file had to store it under another one of the same width; and of an
 * encoded one its codec, source type, the name of its scale, seed and width of its rotation.
 */
interface TensorRef {
  t: string;
  as?: Dtype;
  codec?: string;
  source?: string;
  scale?: string;
  seed?: number;
  width?: number;
}
type JsonMeta = (string | boolean | JsonNumber)[];
interface JsonPart {
  class: string;
  meta: JsonMeta;
  ratio?: number;
}
type JsonElement = TensorRef | JsonNumber | null | JsonElement[];
interface JsonLayer {
  class: string;
  stored: LayerState['stored'];
  range?: [number, number];
  meta: JsonMeta;
  elements: JsonElement[];
  parts?: JsonPart[];
  rows?: HeldRows[];
}

/** A tensor as the file holds it. */
export interface NamedTensor {
  readonly name: string;
  readonly storedDtype: Dtype;
  readonly source: TensorBytes;
}

/** Whether a state, by the text of its `tm.layers`, holds rows that continue those of the block before it. */
export function continuesEarlier(layersJson: string): boolean {
  if (!layersJson.includes('"rows"')) return false;
  const layers = JSON.parse(layersJson) as Partial<JsonLayer>[];
  return layers.some(({ rows }) => rows?.some(({ start }) => start > 0) === true);
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

function encodeMeta(meta: SubState['meta']): JsonMeta {
  return meta.map((value) => (typeof value === 'number' ? encodeNumber(value) : value));
}

/** The JSON text of `layers`, and their tensors in file order. */
export function encodeLayers(layers: readonly LayerState[]): { json: string; tensors: NamedTensor[] } {
  const tensors: NamedTensor[] = [];
  const name = (source: TensorBytes, path: string): TensorRef => {
    const stored = storedDtype(source.dtype);
    tensors.push({ name: path, storedDtype: stored, source });
    return stored === source.dtype ? { t: path } : { t: path, as: source.dtype };
  };
  const encode = (element: StateElement, path: string): JsonElement => {
    if (element === null) return null;
    if (typeof element === 'number') return encodeNumber(element);
    if (!isTensor(element)) return (element as readonly StateElement[]).map((child, i) => encode(child, `${path}.${i}`));
    const place = name(element, path);
    if (element.encoding === undefined) return place;
    const { scale, ...encoding } = element.encoding;
    return { ...place, ...encoding, ...(scale === undefined ? {} : { scale: name(scale, `${path}.scale`).t }) };
  };
  const json = layers.map((layer, i): JsonLayer => {
    const elements = layer.elements.map((element, k) => encode(element, `layers.${i}.${k}`));
    const range = layer.range === undefined ? {} : { range: [layer.range[0], layer.range[1]] as [number, number] };
    const parts = layer.parts?.map(({ className, meta, ratio }) => ({ class: className, meta: encodeMeta(meta), ...(ratio === undefined ? {} : { ratio }) }));
    const rows = layer.rows?.map(({ at, ratio, start, end }) => ({ at: [...at], ratio, start, end }));
    return {
      class: layer.className,
      stored: layer.stored,
      ...range,
      meta: encodeMeta(layer.meta),
      elements,
      ...(parts === undefined ? {} : { parts }),
      ...(rows === undefined || rows.length === 0 ? {} : { rows }),
    };
  });
  return { json: JSON.stringify(json), tensors };
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Thrown inside `decodeLayers` only. */
class NotOurs extends Error {}

function must(holds: unknown): asserts holds {
  if (!holds) throw new NotOurs();
}

function decodeMeta(meta: unknown): LayerState['meta'] {
  must(Array.isArray(meta));
  return meta.map((value: unknown) => {
    if (typeof value === 'string' || typeof value === 'boolean') return value;
    const number = decodeNumber(value);
    must(number !== null);
    return number;
  });
}

function decodeParts(parts: unknown): SubState[] {
  must(Array.isArray(parts));
  return (parts as Partial<Record<keyof JsonPart, unknown>>[]).map((part) => {
    must(typeof part === 'object' && part !== null && typeof part.class === 'string');
    must(part.ratio === undefined || typeof part.ratio === 'number');
    return { className: part.class, meta: decodeMeta(part.meta), ...(part.ratio === undefined ? {} : { ratio: part.ratio }) };
  });
}

function decodeRows(rows: unknown): HeldRows[] {
  must(Array.isArray(rows));
  return (rows as Partial<Record<keyof HeldRows, unknown>>[]).map((entry) => {
    must(typeof entry === 'object' && entry !== null);
    const { at, ratio, start, end } = entry;
    must(Array.isArray(at) && at.length > 0 && at.every(isCount) && isCount(ratio) && ratio > 0 && isCount(start) && isCount(end) && start <= end);
    return { at, ratio, start, end };
  });
}

/** Resolves a name to its bytes; null when there is no such tensor, or it was asked for already. */
export type TensorSource = (name: string, as: Dtype | null) => TensorBytes | null;

function decodeTensor(ref: Partial<Record<keyof TensorRef, unknown>>, tensor: TensorSource): TensorBytes {
  const { t, as = null, codec, source, scale, seed, width } = ref;
  must(typeof t === 'string' && (as === null || DTYPES.includes(as as Dtype)));
  const bytes = tensor(t, as as Dtype | null);
  must(bytes !== null);
  if (codec === undefined) return bytes;
  must(typeof codec === 'string' && typeof source === 'string' && (scale === undefined || typeof scale === 'string'));
  must((seed === undefined || typeof seed === 'number') && (width === undefined || typeof width === 'number'));
  const factors = scale === undefined ? undefined : tensor(scale, null);
  must(factors !== null);
  const encoding: TensorEncoding = {
    codec,
    source,
    ...(factors === undefined ? {} : { scale: factors }),
    ...(seed === undefined ? {} : { seed }),
    ...(width === undefined ? {} : { width }),
  };
  return { ...bytes, encoding };
}

function decodeElement(value: unknown, tensor: TensorSource): StateElement {
  if (value === null) return null;
  if (Array.isArray(value)) return value.map((child) => decodeElement(child, tensor));
  if (typeof value === 'object' && 't' in value) return decodeTensor(value, tensor);
  const number = decodeNumber(value);
  must(number !== null);
  return number;
}

function decodeLayer(raw: Partial<Record<keyof JsonLayer, unknown>>, tensor: TensorSource): LayerState {
  must(typeof raw === 'object' && raw !== null);
  const { class: className, stored, range, meta, elements, parts, rows } = raw;
  must(typeof className === 'string' && (stored === 'slice' || stored === 'whole' || stored === 'none') && Array.isArray(elements));
  must(range === undefined || (Array.isArray(range) && range.length === 2 && isCount(range[0]) && isCount(range[1]) && range[0] <= range[1]));
  return {
    className,
    stored,
    ...(range === undefined ? {} : { range: [range[0], range[1]] as const }),
    meta: decodeMeta(meta),
    elements: elements.map((element) => decodeElement(element, tensor)),
    ...(parts === undefined ? {} : { parts: decodeParts(parts) }),
    ...(rows === undefined ? {} : { rows: decodeRows(rows) }),
  };
}

/**
 * Layers again, from JSON text; `tensor` is asked once for each name in it.
 * Returns null when the text is not what `encodeLayers` writes or names a tensor that is not there.
 */
export function decodeLayers(text: string, tensor: TensorSource): LayerState[] | null {
  try {
    const parsed: unknown = JSON.parse(text);
    must(Array.isArray(parsed));
    return parsed.map((layer) => decodeLayer(layer, tensor));
  } catch (error) {
    if (error instanceof NotOurs || error instanceof SyntaxError) return null;
    throw error;
  }
}
