/**
 * A block file's image: one safetensors file per block and part, laid out before its checksums are known.
 *
 * Whoever captures a boundary lays out the header with 16-digit placeholders and copies tensor bytes behind it; whoever
 * writes the file to disk calls `sealImage`, which computes the checksums over the very bytes it is about to write and
 * patches them in at fixed width. docs/format.md describes every key, with test vectors.
 */

import { TidemarkError } from '../errors.ts';
import { type BlockPart, DTYPE_BYTES, type LayerState, type TensorBytes } from '../layer-state.ts';
import { CopyPlan } from './copy-plan.ts';
import { tokenBytes } from './identity.ts';
import { parseImageHeader } from './image-parse.ts';
import { digitsOffset, headerSum, SUM_DIGITS, tensorSeed, tensorSum, ZERO_DIGITS } from './image-sums.ts';
import { encodeLayers } from './layer-tree.ts';
import { PagedBytes } from './paged-bytes.ts';

export { type ImageMiss, layersFromImage, type ParsedImage, parseImageHeader, verifyImage } from './image-parse.ts';
export { PagedBytes } from './paged-bytes.ts';

export const FORMAT_VERSION = '1';

/** What a block file states. Hashes are 64 lower-case hex digits; `parentHash` of a first block is ''. */
export interface ImageSpec {
  readonly part: BlockPart;
  readonly blockHash: string;
  readonly parentHash: string;
  /** Token range [start, end) of the block. */
  readonly start: number;
  readonly end: number;
  readonly blockSize: number;
  /** The block's own tokens, `end - start` of them. */
  readonly tokens: Uint32Array;
  readonly fingerprint: string;
  readonly layers: readonly LayerState[];
}

export interface ImageTensor {
  readonly name: string;
  /** Where the payload starts in the file. */
  readonly offset: number;
  readonly byteLength: number;
  readonly source: TensorBytes;
  /** Where its 16 checksum digits start in the file. */
  readonly sumOffset: number;
}

export interface ImageLayout {
  /** Length prefix, JSON and padding; all checksum digits are '0'. */
  readonly header: Uint8Array;
  readonly totalBytes: number;
  readonly tensors: readonly ImageTensor[];
  readonly headerSumOffset: number;
}

function requireSpec(spec: ImageSpec): void {
  const isHash = (text: string) => /^[0-9a-f]{64}$/.test(text);
  const problem = !isHash(spec.blockHash)
    ? `blockHash must be 64 hex digits, got '${spec.blockHash}'`
    : spec.parentHash !== '' && !isHash(spec.parentHash)
      ? `parentHash must be '' or 64 hex digits, got '${spec.parentHash}'`
      : !Number.isSafeInteger(spec.start) || spec.start < 0 || !Number.isSafeInteger(spec.end) || spec.end - spec.start !== spec.tokens.length
        ? `range [${spec.start}, ${spec.end}) does not hold the ${spec.tokens.length} tokens given`
        : null;
  if (problem !== null) throw new TidemarkError('INVALID_ARGUMENT', `cannot lay out a block image: ${problem}`);
}

/** Lays out the file: header bytes with placeholder digits, and where each tensor's payload goes. Copies no payload. */
export function layoutImage(spec: ImageSpec): ImageLayout {
  requireSpec(spec);
  const { json, tensors } = encodeLayers(spec.layers);
  const text = new HeaderText();
  text.add(
    `{"__metadata__":{"tm.format":"${FORMAT_VERSION}","tm.part":"${spec.part}","tm.block":"${spec.blockHash}","tm.parent":"${spec.parentHash}",` +
      `"tm.start":"${spec.start}","tm.end":"${spec.end}","tm.block_size":"${spec.blockSize}","tm.tokens":"${Buffer.from(tokenBytes(spec.tokens)).toString('base64')}",` +
      `"tm.fingerprint":${JSON.stringify(spec.fingerprint)},"tm.layers":${JSON.stringify(json)}`,
  );
  for (const { name } of tensors) text.addDigits(`,"tm.sum.${name}":"`);
  text.addDigits(',"tm.header":"');
  text.add('}');
  let at = 0;
  for (const { name, storedDtype, source } of tensors) {
    const { shape, dtype, byteLength } = source;
    const expected = shape.reduce((product, extent) => product * extent, DTYPE_BYTES[dtype]);
    if (expected !== byteLength)
      throw new TidemarkError('INVALID_ARGUMENT', `tensor ${name} of shape [${shape}] and type ${dtype} must have ${expected} bytes, got ${byteLength}`);
    text.add(`,"${name}":{"dtype":"${storedDtype}","shape":[${shape.join(',')}],"data_offsets":[${at},${at + byteLength}]}`);
    at += byteLength;
  }
  text.add('}');

  const { header, digits } = text.encode();
  let dataStart = header.length;
  const placed = tensors.map(({ name, source }, i): ImageTensor => {
    const offset = dataStart;
    dataStart += source.byteLength;
    return { name, offset, byteLength: source.byteLength, source, sumOffset: digits[i]! };
  });
  return { header, totalBytes: header.length + at, tensors: placed, headerSumOffset: digits.at(-1)! };
}

/** The header's JSON as it grows, and where in it checksum digits go. Names of tensors are plain ASCII by construction. */
class HeaderText {
  #text = '';
  readonly #digits: number[] = [];

  add(json: string): void {
    this.#text += json;
  }

  /** `before` ends with the opening quote of the digits. */
  addDigits(before: string): void {
    this.#text += before;
    this.#digits.push(this.#text.length);
    this.#text += `${ZERO_DIGITS}"`;
  }

  /** Length prefix, JSON, padding; digit places in bytes from the start. */
  encode(): { header: Uint8Array; digits: number[] } {
    const text = this.#text;
    const bytes = Buffer.byteLength(text);
    const header = Buffer.alloc(8 + Math.ceil(bytes / 8) * 8, 0x20);
    header.writeBigUInt64LE(BigInt(header.length - 8), 0);
    header.write(text, 8);
    // Characters and bytes differ only where a class or a fingerprint has letters beyond ASCII.
    const place = bytes === text.length ? (at: number) => 8 + at : (at: number) => 8 + Buffer.byteLength(text.slice(0, at));
    return { header, digits: this.#digits.map(place) };
  }
}

/** Copies header and payloads to where the file will be written from. */
export function fillImage(layout: ImageLayout, target: PagedBytes): void {
  const plan = new CopyPlan();
  plan.add(layout, target);
  plan.run();
}

/** Bytes before the first payload, as the image's length prefix states them; all of them when it states nonsense. */
export function headerBytesOf(bytes: PagedBytes): number {
  const stated = bytes.byteLength < 8 ? 0 : 8 + Number(new DataView(bytes.slice(0, 8).buffer).getBigUint64(0, true));
  return Math.min(stated, bytes.byteLength);
}

/**
 * Computes every checksum over the bytes as they are and patches the digits in. Called by the thread that writes the
 * file, right before it does. Sealing twice gives the same bytes. Throws FORMAT_INVALID when `bytes` is no image.
 */
export function sealImage(bytes: PagedBytes): void {
  const prefix = bytes.byteLength < 8 ? 0 : Number(new DataView(bytes.slice(0, 8).buffer).getBigUint64(0, true));
  if (prefix === 0 || prefix > bytes.byteLength - 8) throw new TidemarkError('FORMAT_INVALID', 'cannot seal: the bytes do not start with an image header');
  const header = bytes.slice(0, 8 + prefix);
  const image = parseImageHeader(header, bytes.byteLength, { unsealed: true });
  if (!image.ok) throw new TidemarkError('FORMAT_INVALID', `cannot seal: ${image.detail}`);
  const patch = (at: number, digits: string) => header.set(Buffer.from(digits, 'latin1'), at);
  // Latin-1, so that places in the text are places in the bytes. The keys come in the order of the tensors: parsing has made sure.
  const text = Buffer.from(header.buffer, header.byteOffset, header.byteLength).toString('latin1');
  let behind = 0;
  for (const { name, offset, byteLength } of image.tensors.values()) {
    const key = `"tm.sum.${name}":"`;
    const found = text.indexOf(key, behind);
    if (found < 0) throw new TidemarkError('FORMAT_INVALID', `cannot seal: there is no place for the checksum of ${name}`);
    behind = found + key.length;
    patch(behind, tensorSum(bytes, offset, offset + byteLength, tensorSeed(image.blockHash, image.part, name)));
  }
  const at = digitsOffset(header, 'tm.header', behind);
  patch(at, ZERO_DIGITS);
  patch(at, headerSum(header, at, image.blockHash, image.part));
  bytes.write(0, header);
}

/** The finished file of `spec` in one private buffer (tests, tools, inline writes). */
export function buildImage(spec: ImageSpec): Uint8Array {
  const layout = layoutImage(spec);
  const file = new Uint8Array(layout.totalBytes);
  const bytes = PagedBytes.of(file);
  fillImage(layout, bytes);
  sealImage(bytes);
  return file;
}

export { SUM_DIGITS };
