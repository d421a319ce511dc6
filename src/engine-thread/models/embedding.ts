/** Token ids to vectors, and (tied) vectors to logits. */
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import { applyMatrix, asMatrix, declareRows, finish, type Matrix, ownRows, type StoredRows, unpacked } from './linear.ts';
import type { Deferred, Loader, Parameters } from './parameters.ts';

/** Logits of hidden vectors [rows, hidden]. */
export type Head = (x: Tensor, rows: number, s: Stream) => Tensor;

export class Embedding {
  readonly #rows: StoredRows;
  readonly #dtype: Dtype;
  /** Applied to hidden vectors: the same matrix the other way round. */
  readonly head: Head;

  constructor(rows: StoredRows, head: Matrix, dtype: Dtype, loader: Loader) {
    this.#rows = rows;
    this.#dtype = dtype;
    this.head = (x, count, s) => applyMatrix(head, x, count, loader.options.device, s);
  }

  /** ids [n] to [n, hidden]. */
  lookup(ids: Tensor, s: Stream): Tensor {
    const { weight, scales, biases, spec } = this.#rows;
    if (spec === null) return mx.take(weight, ids, 0, s);
    const packed = {
      weight: mx.take(weight, ids, 0, s),
      scales: mx.take(scales!, ids, 0, s),
      biases: biases === null ? null : mx.take(biases, ids, 0, s),
      spec,
    };
    return unpacked(packed, this.#dtype, s);
  }
}

export function declareEmbedding(params: Parameters, path: string, vocabSize: number, hidden: number, dtype: Dtype): Deferred<Embedding> {
  const { read } = declareRows(params, { path, out: vocabSize }, hidden, false);
  return (loader) =>
    mx.scope(() => {
      const rows = ownRows(read(loader), loader);
      return new Embedding(rows, asMatrix(rows, loader), dtype, loader);
    });
}

/** A head of its own, for models that do not share it with the embedding. */
export function declareHead(params: Parameters, path: string, vocabSize: number, hidden: number): Deferred<Head> {
  const { read } = declareRows(params, { path, out: vocabSize }, hidden, false);
  return (loader) => {
    const matrix = mx.scope(() => finish(read(loader), loader));
    return (x, rows, s) => applyMatrix(matrix, x, rows, loader.options.device, s);
  };
}
