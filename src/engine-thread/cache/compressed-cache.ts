/**
 * State of a layer with compressed attention: the last tokens as they are, one pooled row for each group of `ratio` tokens,
 * index keys of those rows, and what has come of a group that is still open.
 *
 * Groups close at different moments in different sequences, so the rows of a batch stay apart: each has tensors of its own.
 * Stored whole, at one token count, with the open group; pooled rows only ever get more, and a boundary stores those
 * of its own block (see `compactElements`).
 */
import type { LayerState, TensorBytes } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import { type Dtype, dtypeBytes, type Stream, type Tensor } from '../mlx/types.ts';
import { type LayerCache, offsetError, PendingCapture, physicalCopy, type RowOf, requireSingleRow, restoreError, storedDtype } from './layer-cache.ts';

export const COMPRESSED_CLASS = 'LayerCache';
/** Elements that get one row for each group. */
export const POOLED_ELEMENTS: readonly number[] = [1, 2];
/** Where the ratio stands in the stored description. */
export const RATIO_AT = 2;

export interface CompressedShape {
  readonly window: number;
  /** Tokens of a group; 0: this layer pools nothing. */
  readonly ratio: number;
  /** Width and type of each element; null where the layer has none. */
  readonly elements: Readonly<Record<CompressedElement, { readonly width: number; readonly dtype: Dtype } | null>>;
}

const ELEMENTS = ['window', 'pool', 'index', 'openValues', 'openGates'] as const;
export type CompressedElement = (typeof ELEMENTS)[number];

/** One sequence's part. Tensors are [1, n, width] in order of time. */
export class CompressedRow {
  offset = 0;
  readonly #tensors = new Map<CompressedElement, { t: Tensor; rows: number }>();

  get(element: CompressedElement): Tensor | null {
    return this.#tensors.get(element)?.t ?? null;
  }

  rowsOf(element: CompressedElement): number {
    return this.#tensors.get(element)?.rows ?? 0;
  }

  /** The tensor is the cache's from now on; with no rows it is nothing. */
  set(element: CompressedElement, t: Tensor, rows: number): void {
    const old = this.#tensors.get(element);
    if (rows === 0) this.#tensors.delete(element);
    else this.#tensors.set(element, { t: mx.retain(t), rows });
    if (old !== undefined) mx.release(old.t);
  }

  tensors(): Tensor[] {
    return [...this.#tensors.values()].map(({ t }) => t);
  }

  copy(s: Stream): CompressedRow {
    const row = new CompressedRow();
    row.offset = this.offset;
    mx.scope(() => {
      for (const [element, { t, rows }] of this.#tensors) {
        const own = physicalCopy(t, s);
        mx.evaluate([own]);
        row.set(element, own, rows);
      }
    });
    return row;
  }

  release(): void {
    for (const t of this.tensors()) mx.release(t);
    this.#tensors.clear();
    this.offset = 0;
  }
}

export class CompressedCache implements LayerCache {
  readonly className = COMPRESSED_CLASS;
  readonly kind = 'compressed';
  readonly sliceable = false;
  readonly shape: CompressedShape;
  readonly sequences: readonly CompressedRow[];

  constructor(shape: CompressedShape, sequences: readonly CompressedRow[] = [new CompressedRow()]) {
    this.shape = shape;
    this.sequences = sequences;
  }

  get rows(): number {
    return this.sequences.length;
  }

  get offsets(): readonly number[] {
    return this.sequences.map(({ offset }) => offset);
  }

  get offset(): number {
    return Math.max(...this.offsets);
  }

  tensors(): Tensor[] {
    return this.sequences.flatMap((row) => row.tensors());
  }

  bytes(): number {
    const ofRow = (row: CompressedRow) =>
      ELEMENTS.reduce((sum, element) => {
        const spec = this.shape.elements[element];
        return spec === null ? sum : sum + row.rowsOf(element) * spec.width * dtypeBytes(spec.dtype);
      }, 0);
    return this.sequences.reduce((sum, row) => sum + ofRow(row), 0);
  }

  capture(from: number, to: number, s: Stream): PendingCapture {
    requireSingleRow(this);
    if (to !== this.offset || !(from >= 0 && from < to)) throw offsetError(this.className, `exactly ${to}, from ${from}`, this.offset);
    const [row] = this.sequences as readonly [CompressedRow];
    // Updates make new tensors: what is captured stays as it is.
    const elements = ELEMENTS.map((element) => {
      const t = row.get(element);
      return t === null ? null : mx.contiguous(t, s);
    });
    return new PendingCapture(this.className, 'whole', undefined, [to, this.shape.window, this.shape.ratio], elements, { offset: to });
  }

  clone(s: Stream): CompressedCache {
    return new CompressedCache(
      this.shape,
      this.sequences.map((row) => row.copy(s)),
    );
  }

  trim(n: number): boolean {
    return n === 0;
  }

  extractRow(row: number, s: Stream): CompressedCache {
    return CompressedCache.gather([{ cache: this, row }], s);
  }

  static gather(sources: readonly RowOf<CompressedCache>[], s: Stream): CompressedCache {
    return new CompressedCache(
      sources[0]!.cache.shape,
      sources.map(({ cache, row }) => cache.sequences[row]!.copy(s)),
    );
  }

  restore(parts: readonly LayerState[], tokenCount: number): void {
    const [part] = parts;
    const { window, ratio, elements } = this.shape;
    if (part === undefined || parts.length !== 1 || part.className !== this.className || part.stored !== 'whole' || part.elements.length !== ELEMENTS.length) {
      throw restoreError(this.className, `it is ${parts.length} parts, the first a ${part?.stored} ${part?.className}`);
    }
    if (part.meta[0] !== tokenCount || part.meta[1] !== window || part.meta[RATIO_AT] !== ratio) {
      throw restoreError(this.className, `it is described as ${JSON.stringify(part.meta)} at token ${tokenCount}`);
    }
    const pooled = ratio === 0 ? 0 : Math.floor(tokenCount / ratio);
    const open = ratio === 0 ? 0 : tokenCount % ratio;
    const expected: Record<CompressedElement, number> = {
      window: Math.min(tokenCount, window),
      pool: pooled,
      index: pooled,
      openValues: open,
      openGates: open,
    };
    const [row] = this.sequences as readonly [CompressedRow];
    for (const [i, element] of ELEMENTS.entries()) {
      const spec = elements[element];
      const bytes = part.elements[i] as TensorBytes | null;
      const rows = spec === null ? 0 : expected[element];
      if (rows === 0 && (bytes === null || bytes.byteLength === 0)) continue;
      const shape = [1, rows, spec?.width ?? 0];
      if (spec === null || bytes?.shape === undefined || bytes.dtype !== storedDtype(spec.dtype) || bytes.shape.join() !== shape.join()) {
        throw restoreError(this.className, `${element}: expected ${shape}, received ${bytes?.dtype} [${bytes?.shape}]`);
      }
      const host = new Uint8Array(bytes.byteLength);
      bytes.copyTo(host, 0);
      row.set(element, mx.fromBytes(host, shape, spec.dtype), rows);
    }
    row.offset = tokenCount;
  }

  release(): void {
    for (const row of this.sequences) row.release();
  }
}
