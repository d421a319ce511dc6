/**
 * Linear maps, plain or affine-quantized, and several of the same input as one.
 *
 * Weights are stored [out, in]. Maps that read the same input are joined along `out` when loading: decoding then does one
 * product instead of several. Prefill uses the parts, whose outputs are contiguous; they are views of the joined matrix.
 */
import * as mx from '../mlx/ops.ts';
import type { Device, Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { QuantizationSpec } from './config.ts';
import type { Deferred, Loader, Parameters } from './parameters.ts';

/** One map: where it is stored, and which of the stored rows are meant (all unless `pick` says otherwise). */
export interface LinearPart {
  readonly path: string;
  /** Rows of this part. */
  readonly out: number;
  /** The stored rows come in groups of `width` that hold several maps' rows: this part's are [from, to) of each group. */
  readonly pick?: { readonly width: number; readonly from: number; readonly to: number };
}

export interface LinearOptions {
  /** A bias is stored and added. */
  readonly bias?: boolean;
}

/** A matrix as it is applied. `scales` and `biases` are there when it is quantized; `bias` is the map's own. */
export interface Matrix {
  /** Plain: the [in, out] view. Quantized: the codes [out, in * bits / 32]. */
  readonly weight: Tensor;
  readonly scales: Tensor | null;
  readonly biases: Tensor | null;
  readonly bias: Tensor | null;
  readonly spec: QuantizationSpec | null;
}

/** Up to this many rows, MLX's quantized product on CPU beats unpacking the weights for BLAS (measured: 2048 x 2048, 4 bits). */
const QUANTIZED_ROWS_ON_CPU = 8;

/** x [rows, in] to [rows, out]. */
export function applyMatrix(m: Matrix, x: Tensor, rows: number, device: Device, s: Stream): Tensor {
  if (m.spec === null) return m.bias === null ? mx.matmul(x, m.weight, s) : mx.addmm(m.bias, x, m.weight, 1, 1, s);
  const unpack = device === 'cpu' && rows > QUANTIZED_ROWS_ON_CPU;
  const product = unpack
    ? mx.matmul(x, mx.transpose(unpacked(m, mx.dtypeOf(x), s), null, s), s)
    : mx.quantizedMatmul(x, m.weight, m.scales!, m.biases, m.spec, s);
  return m.bias === null ? product : mx.add(product, m.bias, s);
}

/** The weights that codes stand for. */
export function unpacked({ weight, scales, biases, spec }: Pick<Matrix, 'weight' | 'scales' | 'biases' | 'spec'>, dtype: Dtype, s: Stream): Tensor {
  return mx.dequantize(weight, scales!, biases, spec!, dtype, s);
}

/** Maps of one input, side by side, in groups that can be applied alone. */
export class Projection {
  readonly #whole: readonly Matrix[];
  readonly #groups: readonly (readonly Matrix[])[];
  readonly #device: Device;

  /** Matrices of one list are neighbours that could not be joined (they are packed differently); mostly each has one. */
  constructor(whole: readonly Matrix[], groups: readonly (readonly Matrix[])[], device: Device) {
    this.#whole = whole;
    this.#groups = groups;
    this.#device = device;
  }

  /** x [rows, in] to [rows, sum of outs], everything in order. */
  all(x: Tensor, rows: number, s: Stream): Tensor {
    return this.#apply(this.#whole, x, rows, s);
  }

  /** x [rows, in] through the i-th group alone. */
  group(i: number, x: Tensor, rows: number, s: Stream): Tensor {
    return this.#apply(this.#groups[i]!, x, rows, s);
  }

  #apply(matrices: readonly Matrix[], x: Tensor, rows: number, s: Stream): Tensor {
    if (matrices.length === 1) return applyMatrix(matrices[0]!, x, rows, this.#device, s);
    return mx.concatenate(
      matrices.map((matrix) => applyMatrix(matrix, x, rows, this.#device, s)),
      1,
      s,
    );
  }
}

/** Declares maps of `inDim` inputs that are applied together; each group of them may also be applied alone. */
export function declareProjection(
  params: Parameters,
  groups: readonly (readonly LinearPart[])[],
  inDim: number,
  options: LinearOptions = {},
): Deferred<Projection> {
  const declared = groups.map((parts) => parts.map((part) => declareRows(params, part, inDim, options.bias ?? false)));
  const specs = declared.flat().map(({ spec }) => spec);
  const joinable = specs.every((spec) => sameSpec(spec, specs[0] ?? null));
  return (loader) =>
    mx.scope(() => {
      const { device } = loader.options;
      // Parts picked out of one stored matrix read it once.
      const read = new Map<string, StoredRows>();
      const lists = declared.map((parts) => parts.map((part) => part.read(loader, read)));
      if (!joinable) {
        const matrices = lists.map((list) => list.map((rows) => finish(rows, loader)));
        return new Projection(matrices.flat(), matrices, device);
      }
      const rows = ownRows(joinRows(lists.flat(), loader), loader);
      const whole = asMatrix(rows, loader);
      if (groups.length === 1) return new Projection([whole], [[whole]], device);
      let end = 0;
      const views = groups.map((parts) => {
        const from = end;
        end += parts.reduce((sum, { out }) => sum + out, 0);
        return [
          finish(
            mapRows(rows, (t) => sliceRows(t, from, end, loader.stream)),
            loader,
          ),
        ];
      });
      return new Projection([whole], views, device);
    });
}

/** A matrix as stored: everything has one entry per output row on axis 0. */
export interface StoredRows {
  readonly weight: Tensor;
  readonly scales: Tensor | null;
  readonly biases: Tensor | null;
  readonly bias: Tensor | null;
  readonly spec: QuantizationSpec | null;
}

export interface DeclaredRows {
  readonly spec: QuantizationSpec | null;
  /** Reads the rows into the calling scope. Stored matrices that are in `known` are not read again. */
  read(loader: Loader, known?: Map<string, StoredRows>): StoredRows;
}

function sameSpec(a: QuantizationSpec | null, b: QuantizationSpec | null): boolean {
  return a?.bits === b?.bits && a?.groupSize === b?.groupSize && a?.mode === b?.mode;
}

/** Declares one stored matrix [out, inDim] (or the picked rows of it), plain or quantized as the folder has it. */
export function declareRows(params: Parameters, part: LinearPart, inDim: number, bias: boolean): DeclaredRows {
  const { path, out, pick } = part;
  const stored = pick === undefined ? out : (out / (pick.to - pick.from)) * pick.width;
  const { spec, read: readStored } = declareMatrix(params, path, [stored], inDim, bias);
  return {
    spec,
    read: (loader, known = new Map()) => {
      const rows = known.get(path) ?? readStored(loader);
      known.set(path, rows);
      return pick === undefined ? rows : mapRows(rows, (t) => pickRows(t, pick, loader.stream));
    },
  };
}

/** Declares the matrix (or stack of them) [...rows, inDim] at `path` as it is stored. */
export function declareMatrix(params: Parameters, path: string, rows: readonly number[], inDim: number, bias: boolean): DeclaredRows {
  const spec = params.quantizationOf(path, inDim);
  const weight =
    spec === null ? params.declare(`${path}.weight`, [...rows, inDim]) : params.declarePacked(`${path}.weight`, [...rows, (inDim * spec.bits) / 32]);
  const groups = spec === null ? [] : [...rows, inDim / spec.groupSize];
  const affine = spec?.mode === 'affine';
  const scales = spec === null ? null : affine ? params.declare(`${path}.scales`, groups) : params.declarePacked(`${path}.scales`, groups, 'U8');
  const biases = affine ? params.declare(`${path}.biases`, groups) : null;
  const added = bias ? params.declare(`${path}.bias`, [...rows]) : null;
  const read = (loader: Loader): StoredRows => ({
    weight: weight(loader),
    scales: scales?.(loader) ?? null,
    biases: biases?.(loader) ?? null,
    bias: added?.(loader) ?? null,
    spec,
  });
  return { spec, read };
}

function mapRows(rows: StoredRows, f: (t: Tensor) => Tensor): StoredRows {
  const each = (t: Tensor | null) => (t === null ? null : f(t));
  return { weight: f(rows.weight), scales: each(rows.scales), biases: each(rows.biases), bias: each(rows.bias), spec: rows.spec };
}

function joinRows(parts: readonly StoredRows[], { stream }: Loader): StoredRows {
  const join = (field: 'weight' | 'scales' | 'biases' | 'bias') => {
    const list = parts.map((part) => part[field]).filter((t) => t !== null);
    return list.length === 0 ? null : mx.concatenate(list, 0, stream);
  };
  return { weight: join('weight')!, scales: join('scales'), biases: join('biases'), bias: join('bias'), spec: parts[0]!.spec };
}

/** Makes the rows parameters of the model. */
export function ownRows(rows: StoredRows, loader: Loader): StoredRows {
  return mapRows(rows, (t) => loader.own(t));
}

/** Owned rows as they are applied: a plain matrix as the [in, out] view that products use. */
export function asMatrix(owned: StoredRows, loader: Loader): Matrix {
  if (owned.spec !== null) return owned;
  return { ...owned, weight: loader.own(mx.transpose(owned.weight, null, loader.stream)) };
}

export function finish(rows: StoredRows, loader: Loader): Matrix {
  return asMatrix(ownRows(rows, loader), loader);
}

function sliceRows(t: Tensor, from: number, to: number, s: Stream): Tensor {
  const [, ...rest] = mx.shapeOf(t);
  return mx.slice(t, [from, ...rest.map(() => 0)], [to, ...rest], s);
}

function pickRows(t: Tensor, { width, from, to }: NonNullable<LinearPart['pick']>, s: Stream): Tensor {
  const [rows, ...rest] = mx.shapeOf(t) as [number, ...number[]];
  const groups = mx.reshape(t, [rows / width, width, ...rest], s);
  const zeros = rest.map(() => 0);
  const picked = mx.slice(groups, [0, from, ...zeros], [rows / width, to, ...rest], s);
  return mx.reshape(picked, [(rows / width) * (to - from), ...rest], s);
}
