/**
 * Compaction: of a state that only ever gets longer, a boundary stores the rows that its own block added.
 *
 * A pool holds one row for each `ratio` tokens, so at token T it has floor(T / ratio) of them, and the block that ends there
 * added those from floor(prev / ratio) on, where prev is the last block boundary before T. Stored whole, the files of a long
 * prompt would grow with its square; stored so, they grow with its length. The range goes into the file: `joinStates`
 * puts a chain of blocks together again, and refuses one with a hole.
 *
 * Nothing is copied here: the rows are a window onto the bytes of the whole. What is not exactly as described stays whole.
 */
import { DTYPE_BYTES, type HeldRows, isTensorBytes, type LayerState, type StateElement, type TensorBytes } from '../../shared/layer-state.ts';

/** Where a boundary stands among the blocks. */
export interface BlockPoint {
  /** End of the state, in tokens from the start of the sequence. */
  readonly tokenCount: number;
  readonly blockSize: number;
}

/** Replaces elements of layers by the rows of one block. Layers that it does not know are given back as they are. */
export type Compaction = (layers: readonly LayerState[], point: BlockPoint) => readonly LayerState[];

const POOL_CLASS = 'PoolingCache';
/** A pool's sub-state: what is not pooled yet (2 elements), the pool, and in some families what came before (2 more). */
const POOL_LENGTHS = [3, 5];
const POOLED = 2;
/** [batch, rows, …]; stored state has batch 1, so rows lie one behind the other. */
const ROW_AXIS = 1;

/** Rows that the block ending at the point added: [floor(prev / ratio), floor(T / ratio)). Null when there is no such block. */
export function rowsOfBlock(ratio: number, { tokenCount, blockSize }: BlockPoint): readonly [start: number, end: number] | null {
  for (const value of [ratio, tokenCount, blockSize]) if (!Number.isSafeInteger(value) || value <= 0) return null;
  const previous = Math.floor((tokenCount - 1) / blockSize) * blockSize;
  return [Math.floor(previous / ratio), Math.floor(tokenCount / ratio)];
}

/** Append-only pools inside composite layers, by the ratio that their sub-state declares. */
export const compactPools: Compaction = (layers, point) =>
  layers.map((layer) => {
    const pools = (layer.parts ?? []).flatMap(({ className, ratio }, part) => {
      const state = layer.elements[part];
      const isPool = className === POOL_CLASS && ratio !== undefined && Array.isArray(state) && POOL_LENGTHS.includes(state.length);
      return isPool ? [{ at: [part, POOLED], ratio }] : [];
    });
    return pools.reduce((compacted, { at, ratio }) => holdRows(compacted, at, ratio, point), layer);
  });

/**
 * For families whose layers hold append-only rows as elements of their own, as compressed attention does (entries and index
 * keys, one row of each for `ratioOf(layer)` tokens).
 */
export function compactElements(className: string, elements: readonly number[], ratioOf: (layer: LayerState) => number): Compaction {
  return (layers, point) =>
    layers.map((layer) => {
      if (layer.className !== className) return layer;
      return elements.reduce((compacted, at) => holdRows(compacted, [at], ratioOf(layer), point), layer);
    });
}

/** The layer with one element cut down to the block's rows; as it is when that element is not what its ratio says. */
function holdRows(layer: LayerState, at: readonly number[], ratio: number, point: BlockPoint): LayerState {
  const range = rowsOfBlock(ratio, point);
  const whole = elementAt(layer.elements, at);
  if (range === null || !isPool(whole) || whole.shape[ROW_AXIS] !== range[1]) return layer;
  const [start, end] = range;
  const held: HeldRows = { at, ratio, start, end };
  return { ...layer, elements: replaceAt(layer.elements, at, sliceRows(whole, start, end)), rows: [...(layer.rows ?? []), held] };
}

function isPool(element: StateElement | undefined): element is TensorBytes {
  return element !== undefined && isTensorBytes(element) && element.encoding === undefined && element.shape.length > ROW_AXIS && element.shape[0] === 1;
}

/** A window onto rows [start, end) of a tensor [1, rows, …]. */
function sliceRows(whole: TensorBytes, start: number, end: number): TensorBytes {
  const [batch = 1, , ...rest] = whole.shape;
  const rowBytes = rest.reduce((product, extent) => product * extent, DTYPE_BYTES[whole.dtype]);
  return {
    dtype: whole.dtype,
    shape: [batch, end - start, ...rest],
    byteLength: (end - start) * rowBytes,
    copyTo: (target, from) => whole.copyTo(target, start * rowBytes + from),
  };
}

/** @internal */
export function elementAt(elements: readonly StateElement[], at: readonly number[]): StateElement | undefined {
  const [first, ...rest] = at as [number, ...number[]];
  const element = elements[first];
  if (rest.length === 0 || element === undefined) return element;
  return Array.isArray(element) ? elementAt(element as readonly StateElement[], rest) : undefined;
}

/** @internal */
export function replaceAt(elements: readonly StateElement[], at: readonly number[], value: StateElement): StateElement[] {
  const [first, ...rest] = at as [number, ...number[]];
  return elements.map((element, i) => {
    if (i !== first) return element;
    return rest.length === 0 ? value : replaceAt(element as readonly StateElement[], rest, value);
  });
}
