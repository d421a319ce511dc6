/**
 * Fixed-size state that each token replaces: a delta net's convolution window and recurrent matrix, for example.
 *
 * It can't be cut by token: it is stored whole, at one token count. Updates make new tensors, so that a captured one may
 * be read while the model goes on.
 */
import type { LayerState, TensorBytes } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import { dtypeBytes } from '../mlx/types.ts';
import { type LayerCache, offsetError, PendingCapture, physicalCopy, type RowOf, requireSingleRow, restoreError, storedDtype } from './layer-cache.ts';

/** One array of the state, without the batch axis. */
export interface ArraySpec {
  readonly shape: readonly number[];
  readonly dtype: Dtype;
}

export class ArraysCache implements LayerCache {
  readonly className = 'ArraysCache';
  readonly kind = 'arrays';
  readonly sliceable = false;
  readonly specs: readonly ArraySpec[];
  #arrays: (Tensor | null)[];
  #offsets: number[];

  constructor(specs: readonly ArraySpec[], rows = 1) {
    this.specs = specs;
    this.#arrays = specs.map(() => null);
    this.#offsets = new Array<number>(rows).fill(0);
  }

  get rows(): number {
    return this.#offsets.length;
  }

  get offsets(): readonly number[] {
    return this.#offsets;
  }

  get offset(): number {
    return Math.max(...this.#offsets);
  }

  tensors(): Tensor[] {
    return this.#arrays.filter((t) => t !== null);
  }

  bytes(): number {
    return this.rows * this.specs.reduce((sum, { shape, dtype }) => sum + shape.reduce((a, b) => a * b, 1) * dtypeBytes(dtype), 0);
  }

  /** The i-th array [rows, …]; zeros before the first token. */
  get(i: number, s: Stream): Tensor {
    const { shape, dtype } = this.specs[i]!;
    return this.#arrays[i] ?? mx.zeros([this.rows, ...shape], dtype, s);
  }

  /** Replaces the i-th array; the tensor is the cache's from now on. */
  set(i: number, t: Tensor): void {
    const old = this.#arrays[i]!;
    this.#arrays[i] = mx.retain(t);
    if (old !== null) mx.release(old);
  }

  /** Every row has seen `tokens` more. */
  advance(tokens: number): void {
    this.#offsets = this.#offsets.map((offset) => offset + tokens);
  }

  capture(from: number, to: number, s: Stream): PendingCapture {
    requireSingleRow(this);
    if (to !== this.offset || !(from >= 0 && from < to)) throw offsetError(this.className, `exactly ${to}, from ${from}`, this.offset);
    // Shares the buffer where it is row-contiguous: updates make new tensors and never write into one that is held.
    const arrays = this.#arrays.map((t) => (t === null ? null : mx.contiguous(t, s)));
    return new PendingCapture(this.className, 'whole', undefined, [to], arrays, { offset: this.offset });
  }

  clone(s: Stream): ArraysCache {
    const copy = new ArraysCache(this.specs, this.rows);
    copy.#offsets = [...this.#offsets];
    mx.scope(() => copy.#adopt(this.#arrays.map((t) => (t === null ? null : physicalCopy(t, s)))));
    return copy;
  }

  trim(n: number): boolean {
    return n === 0;
  }

  extractRow(row: number, s: Stream): ArraysCache {
    return ArraysCache.gather([{ cache: this, row }], s);
  }

  /** Rows of one or several caches beside each other, evaluated. The sources are unchanged. */
  static gather(sources: readonly RowOf<ArraysCache>[], s: Stream): ArraysCache {
    const { specs } = sources[0]!.cache;
    const gathered = new ArraysCache(specs, sources.length);
    gathered.#offsets = sources.map(({ cache, row }) => cache.#offsets[row]!);
    if (sources.every(({ cache }) => cache.tensors().length === 0)) return gathered;
    const beside = ({ shape }: ArraySpec, i: number) => {
      const rows = sources.map(({ cache, row }) => mx.slice(cache.get(i, s), [row, ...shape.map(() => 0)], [row + 1, ...shape], s));
      // One row would be its source's own buffer.
      return rows.length === 1 ? physicalCopy(rows[0]!, s) : mx.concatenate(rows, 0, s);
    };
    mx.scope(() => gathered.#adopt(specs.map(beside)));
    return gathered;
  }

  restore(parts: readonly LayerState[], tokenCount: number): void {
    const [part] = parts;
    if (part === undefined || parts.length !== 1 || part.className !== this.className || part.stored !== 'whole') {
      throw restoreError(this.className, `it is ${parts.length} parts, the first a ${part?.stored} ${part?.className}`);
    }
    if (part.meta[0] !== tokenCount) throw restoreError(this.className, `it was taken at token ${String(part.meta[0])}, not at ${tokenCount}`);
    if (part.elements.length !== this.specs.length) throw restoreError(this.className, `it has ${part.elements.length} arrays, expected ${this.specs.length}`);
    const arrays = this.specs.map((spec, i) => fromElement(this.className, part.elements[i] as TensorBytes | null, spec));
    this.#offsets = [tokenCount];
    this.#adopt(arrays);
  }

  release(): void {
    for (const t of this.tensors()) mx.release(t);
    this.#arrays = this.specs.map(() => null);
    this.#offsets = this.#offsets.map(() => 0);
  }

  #adopt(arrays: (Tensor | null)[]): void {
    mx.evaluate(arrays.filter((t) => t !== null));
    arrays.forEach((t, i) => {
      if (t !== null) this.set(i, t);
    });
  }
}

function fromElement(className: string, bytes: TensorBytes | null, { shape, dtype }: ArraySpec): Tensor | null {
  if (bytes === null) return null;
  const expected = [1, ...shape];
  if (bytes.dtype !== storedDtype(dtype) || bytes.shape?.join() !== expected.join()) {
    throw restoreError(className, `expected ${storedDtype(dtype)} [${expected}], received ${bytes.dtype} [${bytes.shape}]`);
  }
  const host = new Uint8Array(bytes.byteLength);
  bytes.copyTo(host, 0);
  return mx.fromBytes(host, expected, dtype);
}
