/**
 * Reading a block file: header first, then every byte. Nothing in here throws on bad bytes; it says why they are refused.
 *
 * Order of tests: length prefix, JSON, format version, header checksum, then the meaning of each key. The version comes
 * before the checksum, so that a file of a later version is told from a damaged one and left alone.
 */
import type { MissReason } from '../errors.ts';
import { type BlockPart, DTYPE_BYTES, DTYPES, type Dtype, type LayerState, type TensorBytes } from '../layer-state.ts';
import { tokensFromBytes } from './identity.ts';
import { digitsOffset, headerSum, SUM_DIGITS, tensorSeed, tensorSum } from './image-sums.ts';
import { decodeLayers } from './layer-tree.ts';
import type { PagedBytes } from './paged-bytes.ts';

/** Longer headers are refused unread; the largest of ours are a few hundred KB. */
export const MAX_HEADER_BYTES = 64 * 1024 * 1024;

export interface ImageMiss {
  readonly ok: false;
  readonly reason: MissReason;
  readonly detail: string;
}

export interface ParsedTensor {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** In the file. */
  readonly offset: number;
  readonly byteLength: number;
  /** The 16 digits the header states. */
  readonly sum: string;
}

export interface ParsedImage {
  readonly ok: true;
  readonly part: BlockPart;
  readonly blockHash: string;
  readonly parentHash: string;
  readonly start: number;
  readonly end: number;
  readonly blockSize: number;
  readonly tokens: Uint32Array;
  readonly fingerprint: string;
  readonly layersJson: string;
  /** In file order. */
  readonly tensors: ReadonlyMap<string, ParsedTensor>;
  readonly headerBytes: number;
  readonly totalBytes: number;
}

const FIXED_KEYS = ['tm.format', 'tm.part', 'tm.block', 'tm.parent', 'tm.start', 'tm.end', 'tm.block_size', 'tm.tokens', 'tm.fingerprint', 'tm.layers'];

function miss(reason: MissReason, detail: string): ImageMiss {
  return { ok: false, reason, detail };
}

/** Length of prefix, JSON and padding as the first 8 bytes state it, or why that cannot be. */
export function headerLength(first: Uint8Array, fileBytes: number): number | ImageMiss {
  if (fileBytes < 8 || first.length < 8) return miss('truncated', `file of ${fileBytes} bytes has no header`);
  const stated = new DataView(first.buffer, first.byteOffset, 8).getBigUint64(0, true);
  if (stated === 0n || stated > BigInt(MAX_HEADER_BYTES)) return miss('format', `header length ${stated} is not possible`);
  if (stated > BigInt(fileBytes - 8)) return miss('truncated', `header of ${stated} bytes does not fit into a file of ${fileBytes}`);
  return 8 + Number(stated);
}

function parseTensors(entries: [string, unknown][], metadata: Record<string, string>, headerBytes: number): Map<string, ParsedTensor> | ImageMiss {
  const tensors = new Map<string, ParsedTensor>();
  let at = 0;
  for (const [name, raw] of entries) {
    const { dtype, shape, data_offsets: offsets } = (raw ?? {}) as { dtype?: unknown; shape?: unknown; data_offsets?: unknown };
    if (typeof dtype !== 'string' || !DTYPES.includes(dtype as Dtype)) return miss('format', `tensor ${name} has unknown type ${String(dtype)}`);
    if (!Array.isArray(shape) || !shape.every((extent) => Number.isSafeInteger(extent) && extent >= 0))
      return miss('format', `tensor ${name} has no valid shape`);
    if (!Array.isArray(offsets) || offsets.length !== 2) return miss('format', `tensor ${name} has no offsets`);
    if (offsets[0] !== at) return miss('format', `tensor ${name} starts at ${String(offsets[0])}, expected ${at}: gaps and overlaps are refused`);
    const byteLength = (shape as number[]).reduce((product, extent) => product * extent, 1) * DTYPE_BYTES[dtype as Dtype];
    if (offsets[1] !== at + byteLength) return miss('format', `tensor ${name} ends at ${String(offsets[1])}, its shape says ${at + byteLength}`);
    const sum = metadata[`tm.sum.${name}`];
    if (sum === undefined || sum.length !== SUM_DIGITS) return miss('format', `tensor ${name} has no checksum`);
    tensors.set(name, { name, dtype: dtype as Dtype, shape: shape as number[], offset: headerBytes + at, byteLength, sum });
    at += byteLength;
  }
  return tensors;
}

/**
 * Parses and checks the header of a file of `fileBytes` bytes; `header` holds at least prefix and JSON.
 * `unsealed` skips the header checksum, for an image whose digits are not patched in yet.
 */
export function parseImageHeader(header: Uint8Array, fileBytes: number, options: { unsealed?: boolean } = {}): ParsedImage | ImageMiss {
  const length = headerLength(header, fileBytes);
  if (typeof length !== 'number') return length;
  if (header.length < length) return miss('truncated', `only ${header.length} of ${length} header bytes were given`);
  // A private copy: JSON.parse must see the same bytes as the checksum, and shared memory may not be decoded in place.
  const head = Uint8Array.prototype.slice.call(header, 0, length) as Uint8Array;
  let json: Record<string, unknown>;
  try {
    json = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(head.subarray(8))) as Record<string, unknown>;
  } catch (error) {
    return miss('format', `header is no JSON: ${(error as Error).message.slice(0, 80)}`);
  }
  const metadata = json?.__metadata__ as Record<string, string> | undefined;
  if (typeof metadata !== 'object' || metadata === null || !Object.values(metadata).every((value) => typeof value === 'string'))
    return miss('format', 'header has no metadata of strings');
  const version = metadata['tm.format'];
  if (version === undefined) return miss('version', 'not a file of this library, or one without a version');
  if (version !== '1') return miss('version', `format version ${version.slice(0, 20)} is unknown; this build reads 1`);

  const part = metadata['tm.part'];
  const blockHash = metadata['tm.block'] ?? '';
  const parentHash = metadata['tm.parent'] ?? 'missing';
  if (part !== 'kv' && part !== 'state') return miss('format', 'tm.part is neither kv nor state');
  if (!/^[0-9a-f]{64}$/.test(blockHash) || !/^([0-9a-f]{64})?$/.test(parentHash)) return miss('format', 'tm.block or tm.parent is no hash');
  const digitsAt = digitsOffset(head, 'tm.header');
  if (digitsAt < 0) return miss('format', 'tm.header is missing');
  if (options.unsealed !== true) {
    const actual = headerSum(head, digitsAt, blockHash, part);
    if (actual !== metadata['tm.header']) return miss('checksum', `header checksum is ${actual}, the file says ${String(metadata['tm.header'])}`);
  }

  const { __metadata__: _, ...rest } = json;
  const tensors = parseTensors(Object.entries(rest), metadata, length);
  if (!(tensors instanceof Map)) return tensors;
  const keys = [...FIXED_KEYS, ...[...tensors.keys()].map((name) => `tm.sum.${name}`), 'tm.header'];
  if (Object.keys(metadata).join('\n') !== keys.join('\n')) return miss('format', 'metadata keys are not those of this format, in its order');

  const [start, end, blockSize] = ['tm.start', 'tm.end', 'tm.block_size'].map((key) =>
    /^(0|[1-9]\d{0,14})$/.test(metadata[key]!) ? Number(metadata[key]) : -1,
  ) as [number, number, number];
  const tokens = tokensFromBytes(Buffer.from(metadata['tm.tokens']!, 'base64'));
  if (start < 0 || end < start || blockSize < 0 || tokens === null || tokens.length !== end - start)
    return miss('format', 'token range and tokens do not agree');
  let totalBytes = length;
  for (const tensor of tensors.values()) totalBytes += tensor.byteLength;
  if (totalBytes !== fileBytes) return miss('truncated', `file has ${fileBytes} bytes, its header says ${totalBytes}`);
  return {
    ok: true,
    part,
    blockHash,
    parentHash,
    start,
    end,
    blockSize,
    tokens,
    fingerprint: metadata['tm.fingerprint']!,
    layersJson: metadata['tm.layers']!,
    tensors,
    headerBytes: length,
    totalBytes,
  };
}

/** What a reader expects of a file; what is left out is not tested. */
export interface ExpectedImage {
  readonly blockHash?: string;
  readonly parentHash?: string;
  readonly part?: BlockPart;
  readonly fingerprint?: string;
  readonly start?: number;
  readonly end?: number;
}

/** Verifies every byte of a whole file, and that it is the one expected. */
export function verifyImage(bytes: PagedBytes, expected: ExpectedImage = {}): ParsedImage | ImageMiss {
  const length = headerLength(bytes.slice(0, Math.min(8, bytes.byteLength)), bytes.byteLength);
  if (typeof length !== 'number') return length;
  const image = parseImageHeader(bytes.slice(0, length), bytes.byteLength);
  if (!image.ok) return image;
  for (const key of ['part', 'blockHash', 'parentHash', 'start', 'end'] as const)
    if (expected[key] !== undefined && image[key] !== expected[key]) return miss('format', `${key} is '${image[key]}', expected '${expected[key]}'`);
  if (expected.fingerprint !== undefined && image.fingerprint !== expected.fingerprint) return miss('fingerprint', 'stored by another model or configuration');
  for (const tensor of image.tensors.values()) {
    const actual = tensorSum(bytes, tensor.offset, tensor.offset + tensor.byteLength, tensorSeed(image.blockHash, image.part, tensor.name));
    if (actual !== tensor.sum) return miss('checksum', `tensor ${tensor.name}: checksum is ${actual}, the file says ${tensor.sum}`);
  }
  if (layersFromImage(image, bytes) === null) return miss('format', 'tm.layers does not describe the tensors in the file');
  return image;
}

/** The layers of a parsed file, with bytes read from `bytes` when asked for. Null when tree and tensors disagree. */
export function layersFromImage(image: ParsedImage, bytes: PagedBytes): LayerState[] | null {
  const unused = new Set(image.tensors.keys());
  const layers = decodeLayers(image.layersJson, (name, as): TensorBytes | null => {
    const tensor = image.tensors.get(name);
    if (tensor === undefined || !unused.delete(name)) return null;
    const dtype = as ?? tensor.dtype;
    if (DTYPE_BYTES[dtype] !== DTYPE_BYTES[tensor.dtype]) return null;
    const { offset, byteLength, shape } = tensor;
    return {
      dtype,
      shape,
      byteLength,
      copyTo(target, from) {
        if (from < 0 || from + target.length > byteLength)
          throw new RangeError(`bytes [${from}, ${from + target.length}) lie outside tensor ${name} of ${byteLength}`);
        bytes.read(offset + from, target);
      },
    };
  });
  return layers === null || unused.size > 0 ? null : layers;
}
