/**
 * A model's parameters: declared against the file headers first, read afterwards.
 *
 * Building a model is two passes over the same description. `declare…` checks name, shape and type of everything the
 * architecture needs, so that a folder with a wrong or missing tensor is refused before any weight is read; each
 * declaration returns a function that reads.
 */
import { TidemarkError } from '../../shared/errors.ts';
import type { Dtype as StoredDtype } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Quantization, QuantizationSpec } from './config.ts';
import type { LoadOptions } from './model.ts';
import type { TensorEntry } from './safetensors.ts';
import type { TensorIndex } from './tensor-index.ts';

/** Reads what was declared. */
export type Deferred<T> = (loader: Loader) => T;

const MLX_DTYPE: Readonly<Record<StoredDtype, Dtype>> = {
  BOOL: 'bool',
  U8: 'uint8',
  U16: 'uint16',
  U32: 'uint32',
  U64: 'uint64',
  I8: 'int8',
  I16: 'int16',
  I32: 'int32',
  I64: 'int64',
  F16: 'float16',
  BF16: 'bfloat16',
  F32: 'float32',
  F64: 'float64',
  C64: 'complex64',
};
const FLOATING: readonly StoredDtype[] = ['F16', 'BF16', 'F32'];

/** How names in files become the names a model asks for: null leaves a tensor out, with a reason. */
export type NameMap = (stored: string) => { name: string } | { skip: string };

export class Parameters {
  readonly #dir: string;
  readonly #quantization: Quantization | null;
  readonly #overrides = new Map<string, QuantizationSpec | false>();
  readonly #entries = new Map<string, TensorEntry>();
  readonly #used = new Set<string>();
  readonly #skipped = new Map<string, number>();
  #bytes = 0;
  /** Set by a family before it declares norms. */
  normsAreOffsets = false;

  constructor(dir: string, index: TensorIndex, quantization: Quantization | null, rename: NameMap) {
    this.#dir = dir;
    this.#quantization = quantization;
    // Exceptions are listed by the names of the file.
    for (const [path, spec] of quantization?.overrides ?? []) {
      const result = rename(`${path}.weight`);
      if ('name' in result) this.#overrides.set(result.name.slice(0, -'.weight'.length), spec);
    }
    for (const [stored, entry] of index.tensors) {
      const result = rename(stored);
      if ('skip' in result) {
        this.#skipped.set(result.skip, (this.#skipped.get(result.skip) ?? 0) + 1);
        continue;
      }
      const other = this.#entries.get(result.name);
      if (other !== undefined) {
        throw new TidemarkError(
          'MODEL_FILE_INVALID',
          `Tensors ${other.name} and ${stored} are the same parameter (${result.name}). Remove the file that does not belong to the model.`,
          {
            details: { tensor: result.name },
          },
        );
      }
      this.#entries.set(result.name, entry);
    }
  }

  /** Bytes of everything declared so far. */
  get bytes(): number {
    return this.#bytes;
  }

  has(name: string): boolean {
    return this.#entries.has(name);
  }

  /** All names that end so, e.g. to look at layouts before declaring. */
  entriesEndingIn(suffix: string): TensorEntry[] {
    return [...this.#entries].filter(([name]) => name.endsWith(suffix)).map(([, entry]) => entry);
  }

  /** The header's entry of a tensor that must exist. */
  entry(name: string): TensorEntry {
    const entry = this.#entries.get(name);
    if (entry !== undefined) return entry;
    throw new TidemarkError(
      'MODEL_TENSOR_MISSING',
      `${this.#dir}: tensor ${name} is missing. The download is incomplete, or the files belong to another model than config.json.`,
      {
        details: { path: this.#dir, tensor: name },
      },
    );
  }

  /**
   * A floating parameter of exactly one of these shapes.
   *
   * @throws {TidemarkError} MODEL_TENSOR_MISSING, MODEL_TENSOR_SHAPE
   */
  declare(name: string, ...shapes: readonly (readonly number[])[]): Deferred<Tensor> {
    return this.#declare(name, FLOATING, shapes, true);
  }

  /** The weights of a norm; 1 is added where the folder stores them as offsets from 1. */
  declareNorm(name: string, size: number): Deferred<Tensor> {
    const read = this.declare(name, [size]);
    return this.normsAreOffsets ? (loader) => mx.add(read(loader), 1, loader.stream) : read;
  }

  /** As `declare`, for codes that are never cast. */
  declarePacked(name: string, shape: readonly number[], type: 'U32' | 'U8' = 'U32'): Deferred<Tensor> {
    return this.#declare(name, [type], [shape], false);
  }

  /**
   * How the matrix at `path` is packed; null when it is plain. Which layers are packed, the tensors themselves say (they
   * have scales); how, the configuration does.
   *
   * @throws {TidemarkError} MODEL_CONFIG_INVALID, MODEL_TENSOR_SHAPE
   */
  quantizationOf(path: string, inDim: number): QuantizationSpec | null {
    if (!this.has(`${path}.scales`)) return null;
    const spec = this.#overrides.get(path) ?? this.#quantization?.default;
    if (spec === undefined || spec === false) {
      throw new TidemarkError(
        'MODEL_CONFIG_INVALID',
        `${this.#dir}: ${path} is quantized, but config.json's quantization section ${spec === false ? 'says that it is not' : 'is missing'}.`,
        {
          details: { path: this.#dir, field: 'quantization', tensor: `${path}.scales` },
        },
      );
    }
    if (inDim % spec.groupSize === 0) return spec;
    throw new TidemarkError('MODEL_TENSOR_SHAPE', `${this.#dir}: ${path} has ${inDim} inputs, which groups of ${spec.groupSize} do not divide.`, {
      details: { path: this.#dir, tensor: path, expected: `a multiple of ${spec.groupSize}`, received: inDim },
    });
  }

  /** MLX's name for the type of a floating parameter. */
  floatDtype(name: string): Dtype {
    return MLX_DTYPE[this.entry(name).dtype];
  }

  /** Tensors that are known and not needed: no warning. */
  ignore(prefix: string): null {
    for (const name of this.#entries.keys()) if (name.startsWith(prefix)) this.#used.add(name);
    return null;
  }

  /** Tensors the model did not ask for, as one warning per reason. */
  warnings(): string[] {
    const list = [...this.#skipped].map(([reason, count]) => `${count} tensors were left out: ${reason}`);
    const unused = [...this.#entries.keys()].filter((name) => !this.#used.has(name));
    if (unused.length > 0) {
      const shown = unused.slice(0, 5).join(', ');
      list.push(`${unused.length} tensors are not part of this architecture and were left out: ${shown}${unused.length > 5 ? ', …' : ''}`);
    }
    return list;
  }

  #declare(name: string, dtypes: readonly StoredDtype[], shapes: readonly (readonly number[])[], floating: boolean): Deferred<Tensor> {
    const entry = this.entry(name);
    const fits = dtypes.includes(entry.dtype) && shapes.some((shape) => shape.join() === entry.shape.join());
    if (!fits) {
      const expected = `${dtypes.join('/')} ${shapes.map((shape) => `[${shape.join(', ')}]`).join(' or ')}`;
      const received = `${entry.dtype} [${entry.shape.join(', ')}]`;
      throw new TidemarkError(
        'MODEL_TENSOR_SHAPE',
        `${entry.file}: ${entry.name}: expected ${expected}, received ${received}. The files belong to another model than config.json.`,
        {
          details: { path: entry.file, tensor: entry.name, expected, received },
        },
      );
    }
    if (!this.#used.has(name)) this.#bytes += entry.byteLength;
    this.#used.add(name);
    return (loader) => loader.read(entry, floating);
  }
}

/** Reads declared tensors and owns every parameter of the model. */
export class Loader {
  readonly options: LoadOptions;
  readonly #totalBytes: number;
  readonly #owned: Tensor[] = [];
  #bytes = 0;
  #resident = 0;

  constructor(options: LoadOptions, totalBytes: number) {
    this.options = options;
    this.#totalBytes = totalBytes;
  }

  get stream(): Stream {
    return this.options.stream;
  }

  /** A tensor of the calling scope: in the type the model computes in when it is a floating parameter. */
  read(entry: TensorEntry, floating: boolean): Tensor {
    const stored = mx.loadTensor(entry.file, entry.offset, entry.byteLength, entry.shape, MLX_DTYPE[entry.dtype]);
    this.#bytes += entry.byteLength;
    this.options.onProgress?.(this.#bytes, this.#totalBytes);
    const cast = floating && this.options.compute === 'float32' && entry.dtype !== 'F32';
    const t = cast ? mx.astype(stored, 'float32', this.stream) : stored;
    this.#resident += mx.nbytes(t);
    return t;
  }

  /** Bytes that the parameters read so far take in memory. */
  get residentBytes(): number {
    return this.#resident;
  }

  /**
   * Makes a tensor a parameter: computed now, kept until the model is released.
   *
   * Evaluating each one at once frees what it was made from before the next is read, so that loading needs little more
   * memory than the model itself.
   */
  own(t: Tensor): Tensor {
    mx.evaluate([t]);
    this.#owned.push(mx.retain(t));
    return t;
  }

  release(): void {
    for (const t of this.#owned.splice(0)) mx.release(t);
  }
}
