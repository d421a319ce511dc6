/**
 * What a boundary capture is made of, without MLX: named layers holding elements whose bytes can be copied out.
 *
 * The engine fills `copyTo` from MLX buffers, apps that use `tidemark/store` from their own byte arrays, and restores
 * hand back the same shape with bytes that lie in shared memory.
 */

/** MLX's types by the names safetensors gives them. */
export const DTYPES = ['BOOL', 'U8', 'U16', 'U32', 'U64', 'I8', 'I16', 'I32', 'I64', 'F16', 'BF16', 'F32', 'F64', 'C64'] as const;
export type Dtype = (typeof DTYPES)[number];

export const DTYPE_BYTES: Readonly<Record<Dtype, number>> = {
  BOOL: 1,
  U8: 1,
  U16: 2,
  U32: 4,
  U64: 8,
  I8: 1,
  I16: 2,
  I32: 4,
  I64: 8,
  F16: 2,
  BF16: 2,
  F32: 4,
  F64: 8,
  C64: 8,
};

/**
 * How stored bytes become the tensor again, for state kept at reduced precision. What is in a file is read as it stands:
 * whether it makes sense is for whoever decodes it to say.
 */
export interface TensorEncoding {
  /** One of `STATE_CODECS` but 'fp32'. */
  readonly codec: string;
  /** The type before encoding. */
  readonly source: string;
  /** One factor for each row of the last axis. */
  readonly scale?: TensorBytes;
  /** Of rotated codecs: what the rotation was made from, and the width it was made for. */
  readonly seed?: number;
  readonly width?: number;
}

/** Copies out of many tensors with one call. */
export interface BulkReader {
  /** For each piece four numbers: id, first byte, length, place in `target`. */
  readMany(pieces: Float64Array, target: Uint8Array): void;
}

export interface BulkBytes {
  readonly reader: BulkReader;
  /** Says where bytes [from, from + length) of the tensor lie: `size` bytes from byte `place` of what the reader calls `id`. */
  eachPiece(from: number, length: number, visit: (id: number, place: number, size: number, done: number) => void): void;
}

/** One tensor's bytes, row-major and contiguous. `byteLength` is the product of `shape` times the size of `dtype`. */
export interface TensorBytes {
  /** Type and shape of the bytes; with an `encoding`, of the encoded ones. */
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly byteLength: number;
  readonly encoding?: TensorEncoding;
  /** Copies `target.length` bytes starting at byte `from` of the tensor. Synchronous; the caller keeps `target` alive. */
  copyTo(target: Uint8Array, from: number): void;
  /** How the bytes are copied together with those of other tensors. */
  readonly bulk?: BulkBytes;
}

/** A number of the state itself. A handle of the native layer is a number too, and its type says so: it is refused here. */
export type PlainNumber = number & { readonly isHandle?: never };

/** A place in a layer's state: a tensor's bytes, a plain number, nothing, or (composite caches) a nested list. */
export type StateElement = TensorBytes | PlainNumber | null | readonly StateElement[];

/** Tells a tensor from the other kinds of element. */
export function isTensorBytes(element: StateElement): element is TensorBytes {
  return typeof element === 'object' && element !== null && 'copyTo' in element;
}

/** What one sub-state of a composite layer is: `elements[i]`, a list, belongs to `parts[i]`. */
export interface SubState {
  readonly className: string;
  readonly meta: readonly (string | number | boolean)[];
  /** Tokens for each row, where the sub-state is an append-only pool. */
  readonly ratio?: number;
  /** As `LayerState.offset`. */
  readonly offset?: number;
}

/**
 * An element that grows by one row for each `ratio` tokens (axis 1) and of which only the rows [start, end) are held: the
 * ones of the layer's own block. The rows before are in the states of the blocks before.
 */
export interface HeldRows {
  /** Where the element is: indices into `elements` and the lists in it. */
  readonly at: readonly number[];
  readonly ratio: number;
  readonly start: number;
  readonly end: number;
}

export interface LayerState {
  /** The cache's class as it was at capture, e.g. 'KVCache', 'ArraysCache', 'RotatingKVCache', 'CacheList'. */
  readonly className: string;
  /** How it is stored: 'slice' (this block's rows of an append-only state), 'whole' (fixed state), 'none' (placeholder). */
  readonly stored: 'slice' | 'whole' | 'none';
  /** Token range [start, end) of a slice; absent for whole state and placeholders. */
  readonly range?: readonly [start: number, end: number];
  /** Physical layout and other scalars, order kept (offset, buffer step, ring order, write index, …). */
  readonly meta: readonly (string | number | boolean)[];
  readonly elements: readonly StateElement[];
  /** Of a composite layer: what each of its sub-states is. */
  readonly parts?: readonly SubState[];
  /** Elements that hold a part of their rows. */
  readonly rows?: readonly HeldRows[];
  /** Tokens the layer has seen, where it says so itself. Compared with the boundary when it is saved, and not stored. */
  readonly offset?: number;
}

export type BlockPart = 'kv' | 'state';
