/**
 * Encoded recurrent state → float32 again. What a file says of its encoding is checked before anything is decoded;
 * whatever is not exactly what the encoder writes is refused.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { isTensorBytes, type LayerState, type StateElement, type TensorBytes, type TensorEncoding } from '../../../shared/layer-state.ts';
import { CODEC_SPECS, type CodecSpec, rowsAndWidth, SOURCE_DTYPE, scaleShape } from './codecs.ts';
import { allFinite, dequantizeRows, expandBfloat16 } from './quantize.ts';
import { isRotatable, ROTATION_SEED } from './rotation.ts';

/**
 * The layers with every encoded tensor decoded into memory of its own; the others as they are.
 *
 * @throws {TidemarkError} FORMAT_INVALID (details.missReason 'codec') when an encoding cannot be believed
 */
export function decodeStates(layers: readonly LayerState[]): LayerState[] {
  return layers.map((layer) => (layer.elements.some(isEncoded) ? { ...layer, elements: layer.elements.map(decodeElement) } : layer));
}

/** The tensor in float32, in memory of its own. Throws as `decodeStates`. */
export function decodeTensor(tensor: TensorBytes & { readonly encoding: TensorEncoding }): TensorBytes {
  const spec = checked(tensor);
  const { rows, width } = rowsAndWidth(tensor.shape);
  const values = new Float32Array(rows * width);
  const payload = bytesOf(tensor);
  if (spec.limit === null) {
    expandBfloat16(new Uint16Array(payload.buffer), values);
  } else {
    const scales = new Float32Array(bytesOf(tensor.encoding.scale!).buffer);
    for (const scale of scales) if (!(scale > 0 && scale < Number.POSITIVE_INFINITY)) throw refused(tensor, `has a scale of ${scale}`);
    const integers = spec.payload === 'I8' ? new Int8Array(payload.buffer) : new Int16Array(payload.buffer);
    dequantizeRows(integers, scales, width, spec.rotated, values);
  }
  if (!allFinite(values)) throw refused(tensor, 'decodes to values that are not finite');
  const bytes = new Uint8Array(values.buffer);
  return {
    dtype: SOURCE_DTYPE,
    shape: tensor.shape,
    byteLength: bytes.length,
    copyTo: (target, from) => target.set(bytes.subarray(from, from + target.length)),
  };
}

export function isEncodedTensor(element: StateElement): element is TensorBytes & { readonly encoding: TensorEncoding } {
  return element !== null && isTensorBytes(element) && element.encoding !== undefined;
}

function isEncoded(element: StateElement): boolean {
  return Array.isArray(element) ? element.some(isEncoded) : isEncodedTensor(element);
}

function decodeElement(element: StateElement): StateElement {
  if (Array.isArray(element)) return element.map(decodeElement);
  return isEncodedTensor(element) ? decodeTensor(element) : element;
}

function checked(tensor: TensorBytes & { readonly encoding: TensorEncoding }): CodecSpec {
  const { codec, source, scale, seed, width } = tensor.encoding;
  // An unknown codec says nothing about what the other fields mean, so it comes first.
  if (!Object.hasOwn(CODEC_SPECS, codec)) throw refused(tensor, 'has a codec that this build does not know');
  const spec = CODEC_SPECS[codec as keyof typeof CODEC_SPECS];
  if (source !== SOURCE_DTYPE) throw refused(tensor, `was made from ${source}, expected ${SOURCE_DTYPE}`);
  if (tensor.dtype !== spec.payload) throw refused(tensor, `holds ${tensor.dtype}, expected ${spec.payload}`);
  if (spec.rotated) {
    if (seed !== ROTATION_SEED || width !== tensor.shape.at(-1) || !isRotatable(width!)) throw refused(tensor, `names seed ${seed} and width ${width}`);
  } else if (seed !== undefined || width !== undefined) {
    throw refused(tensor, 'names a rotation that its codec does not have');
  }
  const expected = scaleShape(tensor.shape).join();
  if (spec.limit === null) {
    if (scale !== undefined) throw refused(tensor, 'has a scale that its codec does not have');
  } else if (scale === undefined) {
    throw refused(tensor, 'has no scale');
  } else if (scale.dtype !== 'F32' || scale.shape.join() !== expected) {
    throw refused(tensor, `has a scale of ${scale.dtype} [${scale.shape}], expected F32 [${expected}]`);
  }
  return spec;
}

function bytesOf(tensor: TensorBytes): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(tensor.byteLength);
  tensor.copyTo(bytes, 0);
  return bytes;
}

function refused(tensor: TensorBytes, what: string): TidemarkError {
  const { codec } = tensor.encoding!;
  return new TidemarkError('FORMAT_INVALID', `A stored state [${tensor.shape}] of codec ${codec} ${what}.`, {
    details: { missReason: 'codec', codec, shape: [...tensor.shape] },
  });
}
