/**
 * Keys and values of a sliding-window layer: the last `window` tokens, in a ring.
 *
 * A single token overwrites the oldest column in place, so that columns are in no order of time: `next` is where the ring
 * goes on. Several tokens at once bring the columns into order again, because each of them needs its own window. The first
 * `keep` columns are never overwritten. Until the window is full, columns are in order and the buffer grows in steps.
 *
 * What it held before the window is gone: it is stored whole, at one token count, with the ring as it lies.
 *
 * In a batch rows end at the same moment: row i begins with `padding[i]` columns (in order of time) that belong to no token.
 */
import type { LayerState, TensorBytes } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import { dtypeBytes, type Stream, type Tensor } from '../mlx/types.ts';
import { type AttentionCache, type Mask, timeMask } from './attention-cache.ts';
import { KV_STEP, type KvShape } from './kv-cache.ts';
import { mergeError, offsetError, PendingCapture, physicalCopy, type RowOf, requireSingleRow, restoreError, storedDtype } from './layer-cache.ts';

export interface RotatingShape extends KvShape {
  readonly window: number;
  readonly keep?: number;
}

export class RotatingKvCache implements AttentionCache {
  readonly className = 'RotatingKVCache';
  readonly kind = 'rotating';
  readonly sliceable = false;
  readonly shape: RotatingShape;
  /** Keys and values [rows, heads, capacity, dim]. */
  #buffers: [Tensor, Tensor] | null = null;
  #capacity = 0;
  /** Columns in use. */
  #used = 0;
  /** Column behind the newest token. */
  #next = 0;
  #offsets: number[];
  #padding: number[];

  constructor(shape: RotatingShape, rows = 1) {
    this.shape = shape;
    this.#offsets = new Array<number>(rows).fill(0);
    this.#padding = new Array<number>(rows).fill(0);
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

  get maskKey(): string {
    return `${this.className} ${this.shape.window}`;
  }

  get #keep(): number {
    return this.shape.keep ?? 0;
  }

  tensors(): Tensor[] {
    return this.#buffers === null ? [] : [...this.#buffers];
  }

  bytes(): number {
    const { heads, keyDim, valueDim, dtype } = this.shape;
    return this.rows * heads * this.#capacity * (keyDim + valueDim) * dtypeBytes(dtype);
  }

  mask(length: number, s: Stream): Mask {
    const { window } = this.shape;
    if (length > 1 || this.#used < window) {
      const dropped = length > 1 ? this.#overflow() : 0;
      const padding = this.#padding.map((count) => Math.max(0, count - dropped));
      return timeMask({ columns: this.#used - dropped + length, length, padding, window, keep: this.#keep }, s);
    }
    const padding = this.#padding.map((count) => Math.max(0, count - 1));
    if (padding.every((count) => count === 0)) return null;
    const oldest = this.#writeColumn() + 1;
    const seen = new Uint8Array(this.rows * window);
    for (const [row, count] of padding.entries()) {
      for (let column = 0; column < window; column++) seen[row * window + column] = (column - oldest + window) % window >= count ? 1 : 0;
    }
    return mx.fromBytes(seen, [this.rows, 1, 1, window], 'bool');
  }

  append(keys: Tensor, values: Tensor, tokens: number, s: Stream): { keys: Tensor; values: Tensor; columns: number } {
    const seen = tokens === 1 ? this.#appendOne([keys, values], s) : this.#appendSeveral([keys, values], tokens, s);
    this.#offsets = this.#offsets.map((offset) => offset + tokens);
    return { keys: seen[0], values: seen[1], columns: seen[2] };
  }

  capture(from: number, to: number, s: Stream): PendingCapture {
    requireSingleRow(this);
    if (to !== this.offset || !(from >= 0 && from < to)) throw offsetError(this.className, `exactly ${to}, from ${from}`, this.offset);
    const meta = [to, this.#keep, this.shape.window, this.#used, this.#next, KV_STEP];
    // A full ring shares its buffer; the next token then copies it once, unless the capture is released before.
    const columns = mx.scope(() => ([0, 1] as const).map((element) => mx.keep(mx.contiguous(this.#columns(element, 0, this.#used, s), s))));
    return new PendingCapture(this.className, 'whole', undefined, meta, columns, { offset: to });
  }

  clone(s: Stream): RotatingKvCache {
    const copy = new RotatingKvCache(this.shape, this.rows);
    copy.#offsets = [...this.#offsets];
    copy.#padding = [...this.#padding];
    mx.scope(() => {
      if (this.#buffers !== null) copy.#adopt([physicalCopy(this.#buffers[0], s), physicalCopy(this.#buffers[1], s)], this.#capacity, this.#used, this.#next);
    });
    return copy;
  }

  /** Only what was appended since nothing has been overwritten can be forgotten. */
  trim(n: number): boolean {
    if (n === 0) return true;
    const complete = this.#offsets.every((offset, row) => offset + this.#padding[row]! === this.#used);
    if (n < 0 || !complete || n > Math.min(...this.#offsets)) return false;
    this.#used -= n;
    this.#next = this.#used;
    this.#offsets = this.#offsets.map((offset) => offset - n);
    return true;
  }

  extractRow(row: number, s: Stream): RotatingKvCache {
    return RotatingKvCache.gather([{ cache: this, row }], s);
  }

  /** Rows of one or several caches beside each other, ends aligned, evaluated. The sources are unchanged. */
  static gather(sources: readonly RowOf<RotatingKvCache>[], s: Stream): RotatingKvCache {
    const gathered = new RotatingKvCache(sources[0]!.cache.shape, sources.length);
    gathered.#fill(sources, s);
    return gathered;
  }

  restore(parts: readonly LayerState[], tokenCount: number): void {
    const [part] = parts;
    if (part === undefined || parts.length !== 1 || part.className !== this.className || part.stored !== 'whole' || part.elements.length !== 2) {
      throw restoreError(this.className, `it is ${parts.length} parts, the first a ${part?.stored} ${part?.className}`);
    }
    const [offset, keep, window, used, next, step] = part.meta;
    const sound =
      offset === tokenCount &&
      keep === this.#keep &&
      window === this.shape.window &&
      used === Math.min(tokenCount, window) &&
      step === KV_STEP &&
      Number.isInteger(next) &&
      (used < window ? next === used : (next as number) > keep && (next as number) <= window);
    if (!sound) throw restoreError(this.className, `its ring is described as ${JSON.stringify(part.meta)} at token ${tokenCount}`);
    this.#offsets = [tokenCount];
    this.#adopt([this.#assemble(part, 0, used), this.#assemble(part, 1, used)], this.#capacityFor(used), used, next as number);
  }

  release(): void {
    for (const t of this.tensors()) mx.release(t);
    this.#buffers = null;
    this.#capacity = this.#used = this.#next = 0;
    this.#offsets = this.#offsets.map(() => 0);
    this.#padding = this.#padding.map(() => 0);
  }

  #capacityFor(columns: number): number {
    return Math.min(this.shape.window, Math.ceil(columns / KV_STEP) * KV_STEP);
  }

  /** Columns that several new tokens push out: the first of them sees `window - 1` old ones. */
  #overflow(): number {
    return Math.max(0, this.#used - this.shape.window + 1);
  }

  #writeColumn(): number {
    return this.#next === this.shape.window ? this.#keep : this.#next;
  }

  #appendOne(update: readonly [Tensor, Tensor], s: Stream): [Tensor, Tensor, number] {
    const full = this.#used === this.shape.window;
    const column = full ? this.#writeColumn() : this.#used;
    const used = full ? this.#used : this.#used + 1;
    if (used > this.#capacity) this.#grow(this.#capacityFor(used), s);
    const written = ([0, 1] as const).map((element) => {
      const old = this.#buffers![element];
      // An update that covers the whole buffer becomes the buffer, strides and all; rows must lie head by head.
      const rows = this.#capacity === 1 ? mx.contiguous(update[element], s) : update[element];
      const next = mx.retain(mx.sliceUpdate(old, rows, [0, 0, column, 0], [this.rows, this.shape.heads, column + 1, this.#dim(element)], s));
      // Freed at once: with no other reference left, the write happens in place.
      mx.release(old);
      return next;
    });
    this.#buffers = [written[0]!, written[1]!];
    if (full) this.#padding = this.#padding.map((count) => Math.max(0, count - 1));
    this.#used = used;
    this.#next = column + 1;
    return [this.#columns(0, 0, used, s), this.#columns(1, 0, used, s), used];
  }

  #appendSeveral(update: readonly [Tensor, Tensor], tokens: number, s: Stream): [Tensor, Tensor, number] {
    const { window, heads } = this.shape;
    const keep = this.#keep;
    const dropped = this.#overflow();
    const columns = this.#used - dropped + tokens;
    const kept = Math.min(columns, window);
    const capacity = this.#capacityFor(kept);
    const cut = (t: Tensor, element: 0 | 1, from: number, to: number) => mx.slice(t, [0, 0, from, 0], [this.rows, heads, to, this.#dim(element)], s);
    const all = ([0, 1] as const).map((element) => {
      if (this.#used === 0) return update[element];
      const old = this.#inOrder(element, s);
      const rest = dropped === 0 ? [old] : [...(keep > 0 ? [cut(old, element, 0, keep)] : []), cut(old, element, keep + dropped, this.#used)];
      return mx.concatenate([...rest, update[element]], 2, s);
    });
    const buffers = ([0, 1] as const).map((element) => {
      const whole = all[element]!;
      const pieces = keep > 0 && kept < columns ? [cut(whole, element, 0, keep)] : [];
      pieces.push(cut(whole, element, columns - kept + (pieces.length > 0 ? keep : 0), columns));
      const room = capacity - kept;
      if (room > 0) pieces.push(mx.zeros([this.rows, heads, room, this.#dim(element)], this.shape.dtype, s));
      return mx.retain(mx.contiguous(pieces.length === 1 ? pieces[0]! : mx.concatenate(pieces, 2, s), s));
    });
    for (const t of this.tensors()) mx.release(t);
    this.#buffers = [buffers[0]!, buffers[1]!];
    this.#padding = this.#padding.map((count) => Math.max(0, count - dropped - (columns - kept)));
    this.#used = this.#next = kept;
    this.#capacity = capacity;
    return [all[0]!, all[1]!, columns];
  }

  #dim(element: 0 | 1): number {
    return element === 0 ? this.shape.keyDim : this.shape.valueDim;
  }

  #columns(element: 0 | 1, from: number, to: number, s: Stream): Tensor {
    return mx.slice(this.#buffers![element], [0, 0, from, 0], [this.rows, this.shape.heads, to, this.#dim(element)], s);
  }

  /** The columns in use, oldest first (behind those that are always kept). */
  #inOrder(element: 0 | 1, s: Stream): Tensor {
    if (this.#used < this.shape.window || this.#next === this.shape.window) return this.#columns(element, 0, this.#used, s);
    const keep = this.#keep;
    const pieces = [this.#columns(element, this.#next, this.#used, s), this.#columns(element, keep, this.#next, s)];
    if (keep > 0) pieces.unshift(this.#columns(element, 0, keep, s));
    return mx.concatenate(pieces, 2, s);
  }

  #grow(capacity: number, s: Stream): void {
    const grown = ([0, 1] as const).map((element) =>
      mx.scope(() => {
        const room = mx.zeros([this.rows, this.shape.heads, capacity - this.#used, this.#dim(element)], this.shape.dtype, s);
        return mx.retain(this.#used === 0 ? room : mx.concatenate([this.#columns(element, 0, this.#used, s), room], 2, s));
      }),
    );
    for (const t of this.tensors()) mx.release(t);
    this.#buffers = [grown[0]!, grown[1]!];
    this.#capacity = capacity;
  }

  #fill(sources: readonly RowOf<RotatingKvCache>[], s: Stream): void {
    const { heads, dtype, window } = this.shape;
    const lengths = sources.map(({ cache, row }) => cache.#used - cache.#padding[row]!);
    const longest = Math.max(...lengths);
    this.#offsets = sources.map(({ cache, row }) => cache.#offsets[row]!);
    this.#padding = lengths.map((length) => longest - length);
    if (longest === 0) return;
    // With kept columns, rows of different lengths would not keep the same ones.
    if (this.#keep > 0 && sources.length > 1) throw mergeError(this.className, 'rows with kept tokens do not decode in one batch');
    const capacity = this.#capacityFor(longest);
    const buffer = (element: 0 | 1) => {
      const dim = this.#dim(element);
      let target = mx.zeros([sources.length, heads, capacity, dim], dtype, s);
      sources.forEach(({ cache, row }, i) => {
        const length = lengths[i]!;
        if (length === 0) return;
        const part = mx.slice(cache.#inOrder(element, s), [row, 0, cache.#used - length, 0], [row + 1, heads, cache.#used, dim], s);
        if (sources.length === 1 && length === capacity) target = physicalCopy(part, s);
        else target = mx.sliceUpdate(target, part, [i, 0, longest - length, 0], [i + 1, heads, longest, dim], s);
      });
      return target;
    };
    mx.scope(() => this.#adopt([buffer(0), buffer(1)], capacity, longest, Math.min(longest, window)));
  }

  #adopt(buffers: [Tensor, Tensor], capacity: number, used: number, next: number): void {
    mx.evaluate(buffers);
    this.#capacity = capacity;
    this.#buffers = [mx.retain(buffers[0]), mx.retain(buffers[1])];
    this.#used = used;
    this.#next = next;
  }

  #assemble(part: LayerState, element: 0 | 1, used: number): Tensor {
    const { heads, dtype } = this.shape;
    const dim = this.#dim(element);
    const bytes = part.elements[element] as TensorBytes | null;
    const expected = [1, heads, used, dim];
    if (bytes?.shape === undefined || bytes.dtype !== storedDtype(dtype) || bytes.shape.join() !== expected.join()) {
      throw restoreError(this.className, `expected ${storedDtype(dtype)} [${expected}], received ${bytes?.dtype} [${bytes?.shape}]`);
    }
    const capacity = this.#capacityFor(used);
    const length = used * dim * dtypeBytes(dtype);
    const host = new Uint8Array((heads * length * capacity) / used);
    for (let head = 0; head < heads; head++) {
      const at = (head * host.length) / heads;
      bytes.copyTo(host.subarray(at, at + length), head * length);
    }
    return mx.fromBytes(host, [1, heads, capacity, dim], dtype);
  }
}
