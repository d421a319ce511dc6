/**
 * Keys and values of a full-attention layer: buffers [rows, heads, capacity, dim] that grow in steps of 256 tokens and
 * are written in place.
 *
 * In a batch the rows end at the same column: row i begins with `padding[i]` columns that belong to no token. Columns at
 * and behind `length` are not data.
 */
import type { BulkBytes, LayerState, TensorBytes } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import { tensorReader } from '../mlx/read-many.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import { dtypeBytes } from '../mlx/types.ts';
import { type AttentionCache, chunkMask, type Mask, timeMask } from './attention-cache.ts';
import { offsetError, PendingCapture, physicalCopy, type RowOf, requireSingleRow, restoreError, storedDtype } from './layer-cache.ts';

/** Tokens a buffer grows by. Stored with each block: a restored buffer has the capacity the writer's had. */
export const KV_STEP = 256;

/** More than any context: refuses a damaged description before memory is taken for it. */
const MAX_CAPACITY = 2 ** 26;

export interface KvShape {
  readonly heads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  readonly dtype: Dtype;
  /** A token sees only those since the last multiple of this, for layers with chunked attention. Everything is kept. */
  readonly chunk?: number;
}

const capacityFor = (tokens: number) => Math.ceil(tokens / KV_STEP) * KV_STEP;

export class KvCache implements AttentionCache {
  readonly className: 'KVCache' | 'ChunkedKVCache';
  readonly kind: 'kv' | 'chunked';
  readonly sliceable = true;
  readonly shape: KvShape;
  #keys: Tensor | null = null;
  #values: Tensor | null = null;
  #capacity = 0;
  #length = 0;
  #padding: readonly number[];
  /** Counts what takes rows away: a capture made before reads rows that are no longer the same. */
  #rewrites = 0;

  constructor(shape: KvShape, padding: readonly number[] = [0]) {
    this.shape = shape;
    this.#padding = padding;
    this.className = shape.chunk === undefined ? 'KVCache' : 'ChunkedKVCache';
    this.kind = shape.chunk === undefined ? 'kv' : 'chunked';
  }

  get maskKey(): string {
    return this.shape.chunk === undefined ? this.className : `${this.className} ${this.shape.chunk}`;
  }

  get rows(): number {
    return this.#padding.length;
  }

  get offsets(): readonly number[] {
    return this.#padding.map((padding) => this.#length - padding);
  }

  get offset(): number {
    return this.#length - Math.min(...this.#padding);
  }

  /** Columns in use, padding included: what attention sees. */
  get length(): number {
    return this.#length;
  }

  get padding(): readonly number[] {
    return this.#padding;
  }

  get capacity(): number {
    return this.#capacity;
  }

  tensors(): Tensor[] {
    return this.#keys === null ? [] : [this.#keys, this.#values!];
  }

  bytes(): number {
    const { heads, keyDim, valueDim, dtype } = this.shape;
    return this.rows * heads * this.#capacity * (keyDim + valueDim) * dtypeBytes(dtype);
  }

  mask(length: number, s: Stream): Mask {
    const { chunk } = this.shape;
    if (chunk !== undefined) return chunkMask({ columns: this.#length + length, from: this.#firstSeen(chunk), length, padding: this.#padding, chunk }, s);
    return timeMask({ columns: this.#length + length, length, padding: this.#padding }, s);
  }

  append(keys: Tensor, values: Tensor, tokens: number, s: Stream): { keys: Tensor; values: Tensor; columns: number } {
    const end = this.#length + tokens;
    const from = this.shape.chunk === undefined ? 0 : this.#firstSeen(this.shape.chunk);
    if (end > this.#capacity) this.#grow(capacityFor(end), s);
    this.#keys = this.#write(0, this.#keys!, keys, this.#length, end, s);
    this.#values = this.#write(1, this.#values!, values, this.#length, end, s);
    this.#length = end;
    return { keys: this.#view(0, this.#keys, end, s, from), values: this.#view(1, this.#values, end, s, from), columns: end - from };
  }

  /**
   * Rows are read straight from the live buffers, with no copy in between: they stay the same while the cache grows. Read
   * them before `trim` or `release`; while a step that appends is not evaluated yet, they can't be read.
   */
  capture(from: number, to: number, _s: Stream): PendingCapture {
    requireSingleRow(this);
    if (!(from >= 0 && from < to && to <= this.offset)) throw offsetError(this.className, `at least ${to}, from ${from}`, this.offset);
    return new PendingCapture(this.className, 'slice', [from, to], [to, KV_STEP, this.#capacity], [this.#rowBytes(0, from, to), this.#rowBytes(1, from, to)]);
  }

  clone(s: Stream): KvCache {
    const copy = new KvCache(this.shape, this.#padding);
    mx.scope(() => {
      if (this.#keys !== null) copy.#adopt(physicalCopy(this.#keys, s), physicalCopy(this.#values!, s), this.#capacity, this.#length);
    });
    return copy;
  }

  trim(n: number): boolean {
    if (n < 0 || n > Math.min(...this.offsets)) return false;
    this.#length -= n;
    this.#rewrites++;
    return true;
  }

  extractRow(row: number, s: Stream): KvCache {
    return KvCache.gather([{ cache: this, row }], s);
  }

  /** Rows of one or several caches beside each other, ends aligned, evaluated. The sources are unchanged. */
  static gather(sources: readonly RowOf<KvCache>[], s: Stream): KvCache {
    const lengths = sources.map(({ cache, row }) => cache.offsets[row]!);
    const longest = Math.max(...lengths);
    const gathered = new KvCache(
      sources[0]!.cache.shape,
      lengths.map((length) => longest - length),
    );
    gathered.#fill(sources, s);
    return gathered;
  }

  restore(parts: readonly LayerState[], tokenCount: number): void {
    let at = 0;
    for (const part of parts) {
      if (part.className !== this.className || part.stored !== 'slice' || part.range === undefined)
        throw restoreError(this.className, `it holds a ${part.stored} ${part.className}`);
      if (part.range[0] !== at) throw restoreError(this.className, `tokens ${at} to ${part.range[0]} are missing`);
      at = part.range[1];
    }
    if (at !== tokenCount) throw restoreError(this.className, `it ends at token ${at}, not at ${tokenCount}`);
    const [, step, capacity] = parts.at(-1)!.meta;
    if (step !== KV_STEP || typeof capacity !== 'number' || capacity < tokenCount || capacity % KV_STEP !== 0 || capacity > MAX_CAPACITY) {
      throw restoreError(this.className, `its buffer is described as ${JSON.stringify(parts.at(-1)!.meta)}`);
    }
    this.#adopt(this.#assemble(parts, 0, capacity), this.#assemble(parts, 1, capacity), capacity, tokenCount);
  }

  release(): void {
    for (const t of this.tensors()) mx.release(t);
    this.#keys = this.#values = null;
    this.#rewrites++;
    this.#capacity = this.#length = 0;
  }

  #dim(element: 0 | 1): number {
    return element === 0 ? this.shape.keyDim : this.shape.valueDim;
  }

  #adopt(keys: Tensor, values: Tensor, capacity: number, length: number): void {
    mx.evaluate([keys, values]);
    this.#keys = mx.retain(keys);
    this.#values = mx.retain(values);
    this.#capacity = capacity;
    this.#length = length;
  }

  #grow(capacity: number, s: Stream): void {
    const grown = (old: Tensor | null, element: 0 | 1) =>
      mx.scope(() => {
        const room = mx.zeros([this.rows, this.shape.heads, capacity - this.#length, this.#dim(element)], this.shape.dtype, s);
        if (old === null || this.#length === 0) return mx.retain(room);
        return mx.retain(mx.concatenate([this.#view(element, old, this.#length, s), room], 2, s));
      });
    const keys = grown(this.#keys, 0);
    const values = grown(this.#values, 1);
    for (const t of this.tensors()) mx.release(t);
    this.#keys = keys;
    this.#values = values;
    this.#capacity = capacity;
  }

  /** Frees the old handle at once: with no other reference left, the write happens in place. */
  #write(element: 0 | 1, old: Tensor, update: Tensor, from: number, to: number, s: Stream): Tensor {
    // An update that covers the whole buffer becomes the buffer, strides and all; rows must lie head by head.
    const rows = from === 0 && to === this.#capacity ? mx.contiguous(update, s) : update;
    const next = mx.retain(mx.sliceUpdate(old, rows, [0, 0, from, 0], [this.rows, this.shape.heads, to, this.#dim(element)], s));
    mx.release(old);
    return next;
  }

  /** The first column that any row's next token sees. */
  #firstSeen(chunk: number): number {
    return Math.min(...this.#padding.map((padding) => padding + Math.floor((this.#length - padding) / chunk) * chunk));
  }

  #view(element: 0 | 1, t: Tensor, to: number, s: Stream, from = 0): Tensor {
    return mx.slice(t, [0, 0, from, 0], [this.rows, this.shape.heads, to, this.#dim(element)], s);
  }

  /** The tokens' rows of every head, one head after the other, read from wherever the buffer is at that time. */
  #rowBytes(element: 0 | 1, from: number, to: number): TensorBytes {
    const { heads, dtype } = this.shape;
    const dim = this.#dim(element);
    const rowBytes = dim * dtypeBytes(dtype);
    const headBytes = (to - from) * rowBytes;
    const rewrites = this.#rewrites;
    const eachPiece: BulkBytes['eachPiece'] = (at, length, visit) => {
      const buffer = element === 0 ? this.#keys : this.#values;
      if (buffer === null || this.#rewrites !== rewrites) throw offsetError(this.className, `rows ${from} to ${to} as they were`, this.offset);
      for (let done = 0; done < length; ) {
        const head = Math.floor((at + done) / headBytes);
        const within = at + done - head * headBytes;
        const size = Math.min(headBytes - within, length - done);
        visit(buffer, (head * this.#capacity + from) * rowBytes + within, size, done);
        done += size;
      }
    };
    return {
      dtype: storedDtype(dtype),
      shape: [1, heads, to - from, dim],
      byteLength: heads * headBytes,
      copyTo: (target, at) => eachPiece(at, target.length, (t, place, size, done) => mx.readBytes(t as Tensor, place, target.subarray(done, done + size))),
      bulk: { reader: tensorReader, eachPiece },
    };
  }

  #fill(sources: readonly RowOf<KvCache>[], s: Stream): void {
    const length = Math.max(...sources.map(({ cache, row }) => cache.offsets[row]!));
    if (length === 0) return;
    const capacity = capacityFor(length);
    const buffer = (element: 0 | 1) =>
      mx.scope(() => {
        const dim = this.#dim(element);
        const { heads } = this.shape;
        let target = mx.zeros([sources.length, heads, capacity, dim], this.shape.dtype, s);
        sources.forEach(({ cache, row }, i) => {
          const tokens = cache.offsets[row]!;
          if (tokens === 0) return;
          const whole = element === 0 ? cache.#keys! : cache.#values!;
          const part = mx.slice(whole, [row, 0, cache.#length - tokens, 0], [row + 1, heads, cache.#length, dim], s);
          if (sources.length === 1 && tokens === capacity) target = physicalCopy(part, s);
          else target = mx.sliceUpdate(target, part, [i, 0, length - tokens, 0], [i + 1, heads, length, dim], s);
        });
        mx.evaluate([target]);
        return mx.keep(target);
      });
    mx.scope(() => this.#adopt(buffer(0), buffer(1), capacity, length));
  }

  /** The blocks' rows in one host buffer laid out as the device buffer will be, then one copy into MLX. */
  #assemble(parts: readonly LayerState[], element: 0 | 1, capacity: number): Tensor {
    const { heads, dtype } = this.shape;
    const dim = this.#dim(element);
    const rowBytes = dim * dtypeBytes(dtype);
    const host = new Uint8Array(heads * capacity * rowBytes);
    for (const part of parts) {
      const bytes = part.elements[element] as TensorBytes | undefined;
      const [from, to] = part.range!;
      const expected = [1, heads, to - from, dim];
      if (part.elements.length !== 2 || bytes?.shape === undefined || bytes.dtype !== storedDtype(dtype) || bytes.shape.join() !== expected.join()) {
        throw restoreError(this.className, `expected ${storedDtype(dtype)} [${expected}], received ${bytes?.dtype} [${bytes?.shape}]`);
      }
      const length = (to - from) * rowBytes;
      for (let head = 0; head < heads; head++) {
        const at = head * capacity * rowBytes + from * rowBytes;
        bytes.copyTo(host.subarray(at, at + length), head * length);
      }
    }
    return mx.fromBytes(host, [1, heads, capacity, dim], dtype);
  }
}
