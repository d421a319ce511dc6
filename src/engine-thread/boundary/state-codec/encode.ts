/**
 * Float32 recurrent state → what a file holds of it.
 *
 * Engine thread, on bytes read out of MLX after the one evaluation of the boundary, so that checking the values costs no
 * further wait. Sizes are known from the shape; values are encoded when the first of their bytes is asked for, into memory
 * that the next tensor uses again. So a value that may not be stored shows while the bytes are copied, before
 * anything is published, and refuses the whole snapshot.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { DTYPE_BYTES, isTensorBytes, type LayerState, type StateElement, type TensorBytes, type TensorEncoding } from '../../../shared/layer-state.ts';
import type { StateCodec } from '../../../shared/state-codecs.ts';
import { CODEC_SPECS, type CodecSpec, type ReducedCodec, rowsAndWidth, SOURCE_DTYPE, scaleShape } from './codecs.ts';
import { quantizeRows, roundToBfloat16, type Unencodable } from './quantize.ts';
import { isRotatable, ROTATION_SEED } from './rotation.ts';

/** Layers whose element 1 is recurrent state. */
const RECURRENT_CLASS = /ArraysCache$/;
const RECURRENT_ELEMENT = 1;
/** Values read out of MLX at a time. */
const CHUNK_VALUES = 256 * 1024;

export class StateEncoder {
  readonly codec: StateCodec;
  readonly #onFallback: (width: number) => void;
  readonly #scratch = new Scratch();

  /** @param onFallback told the width of each tensor that is stored as float32 because it cannot be rotated */
  constructor(codec: StateCodec, onFallback: (width: number) => void = () => undefined) {
    this.codec = codec;
    this.#onFallback = onFallback;
  }

  /**
   * The layers with their recurrent state to be stored encoded. Reading its bytes throws INVALID_ARGUMENT
   * (details.reason 'nonfinite') where a value or a scale is not finite. One thread, one snapshot at a time.
   */
  encode(layers: readonly LayerState[]): readonly LayerState[] {
    const { codec } = this;
    if (codec === 'fp32') return layers;
    return layers.map((layer) => {
      if (RECURRENT_CLASS.test(layer.className)) return { ...layer, elements: this.#encodeState(layer.elements, codec) };
      if (layer.parts?.some(({ className }) => RECURRENT_CLASS.test(className)) !== true) return layer;
      const elements = layer.elements.map((state, i) => {
        const recurrent = Array.isArray(state) && RECURRENT_CLASS.test(layer.parts![i]?.className ?? '');
        return recurrent ? this.#encodeState(state as readonly StateElement[], codec) : state;
      });
      return { ...layer, elements };
    });
  }

  #encodeState(elements: readonly StateElement[], codec: ReducedCodec): StateElement[] {
    return elements.map((element, i) => {
      if (i !== RECURRENT_ELEMENT || element === null || !isTensorBytes(element)) return element;
      if (element.dtype !== SOURCE_DTYPE || element.shape.length < 2 || element.encoding !== undefined) return element;
      const { width } = rowsAndWidth(element.shape);
      if (CODEC_SPECS[codec].rotated && !isRotatable(width)) {
        this.#onFallback(width);
        return element;
      }
      return encodedTensor(element, codec, this.#scratch);
    });
  }
}

function encodedTensor(source: TensorBytes, codec: ReducedCodec, scratch: Scratch): TensorBytes {
  const spec = CODEC_SPECS[codec];
  const { shape } = source;
  const { rows, width } = rowsAndWidth(shape);
  const payloadBytes = rows * width * DTYPE_BYTES[spec.payload];
  const read = (which: 'payload' | 'scale') => (target: Uint8Array, from: number) => {
    const bytes = scratch.encoded(source, codec, spec)[which];
    target.set(bytes.subarray(from, from + target.length));
  };
  const scale: TensorBytes | undefined =
    spec.limit === null ? undefined : { dtype: 'F32', shape: scaleShape(shape), byteLength: 4 * rows, copyTo: read('scale') };
  const encoding: TensorEncoding = {
    codec,
    source: SOURCE_DTYPE,
    ...(scale === undefined ? {} : { scale }),
    ...(spec.rotated ? { seed: ROTATION_SEED, width } : {}),
  };
  return { dtype: spec.payload, shape, byteLength: payloadBytes, copyTo: read('payload'), encoding };
}

/** One encoded tensor at a time. It is encoded again should somebody come back to it after another one. */
class Scratch {
  #holds: TensorBytes | null = null;
  #payload = new Uint8Array(0);
  #scale = new Uint8Array(0);
  #values = new Float32Array(0);

  encoded(source: TensorBytes, codec: ReducedCodec, spec: CodecSpec): { payload: Uint8Array; scale: Uint8Array } {
    if (this.#holds !== source) {
      this.#holds = null;
      this.#encode(source, codec, spec);
      this.#holds = source;
    }
    return { payload: this.#payload, scale: this.#scale };
  }

  #encode(source: TensorBytes, codec: ReducedCodec, spec: CodecSpec): void {
    const { rows, width } = rowsAndWidth(source.shape);
    const itemBytes = DTYPE_BYTES[spec.payload];
    this.#payload = atLeast(this.#payload, rows * width * itemBytes);
    if (spec.limit !== null) this.#scale = atLeast(this.#scale, 4 * rows);
    const scales = new Float32Array(this.#scale.buffer);
    const rowsAtOnce = Math.max(1, Math.min(rows, Math.floor(CHUNK_VALUES / Math.max(1, width))));
    if (this.#values.length < rowsAtOnce * width) this.#values = new Float32Array(rowsAtOnce * width);
    for (let row = 0; row < rows; row += rowsAtOnce) {
      const count = Math.min(rowsAtOnce, rows - row);
      const values = this.#values.subarray(0, count * width);
      source.copyTo(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), 4 * row * width);
      const out = this.#payload.buffer;
      const at = row * width * itemBytes;
      const problem =
        spec.limit === null
          ? roundToBfloat16(values, new Uint16Array(out, at, values.length))
          : quantizeRows(values, width, spec.limit, spec.rotated, integers(spec, out, at, values.length), scales.subarray(row, row + count));
      if (problem !== null) throw unencodable(problem, codec, source.shape);
    }
  }
}

function integers(spec: CodecSpec, buffer: ArrayBuffer, at: number, length: number): Int8Array | Int16Array {
  return spec.payload === 'I8' ? new Int8Array(buffer, at, length) : new Int16Array(buffer, at, length);
}

function atLeast(bytes: Uint8Array<ArrayBuffer>, length: number): Uint8Array<ArrayBuffer> {
  return bytes.length >= length ? bytes : new Uint8Array(Math.ceil(length / 8) * 8);
}

function unencodable(problem: Unencodable, codec: string, shape: readonly number[]): TidemarkError {
  const what = problem === 'value' ? 'holds a value that is not finite' : 'has a row whose scale is not finite';
  return new TidemarkError('INVALID_ARGUMENT', `A recurrent state [${shape}] ${what}; codec ${codec} cannot store it.`, {
    details: { reason: 'nonfinite', codec, shape: [...shape] },
  });
}
