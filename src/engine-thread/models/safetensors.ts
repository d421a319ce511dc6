/**
 * Headers of safetensors files: read and checked completely before any tensor's bytes are.
 *
 * A file is 8 bytes of header length (little-endian), a JSON header, and the tensors' bytes. Offsets in the header count
 * from the end of the header.
 */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { TidemarkError } from '../../shared/errors.ts';
import { DTYPE_BYTES, DTYPES, type Dtype } from '../../shared/layer-state.ts';
import { isObject, type Json } from './checks.ts';

/** Where one tensor's bytes are. */
export interface TensorEntry {
  readonly name: string;
  readonly file: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Absolute position in the file. */
  readonly offset: number;
  readonly byteLength: number;
}

export interface SafetensorsHeader {
  readonly path: string;
  readonly fileSize: number;
  /** The header's JSON text: part of the model's fingerprint. */
  readonly text: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: ReadonlyMap<string, TensorEntry>;
}

/** The format's own limit; anything above is not a safetensors file. */
const MAX_HEADER = 100_000_000;

/**
 * @throws {TidemarkError} MODEL_FILE_TRUNCATED when bytes are missing, MODEL_FILE_INVALID when it is not such a file,
 *   MODEL_FILE_UNREADABLE when it cannot be opened
 */
export function readSafetensorsHeader(path: string): SafetensorsHeader {
  let fd: number;
  try {
    fd = openSync(path, 'r');
  } catch (error) {
    const errno = (error as NodeJS.ErrnoException).code;
    throw new TidemarkError('MODEL_FILE_UNREADABLE', `${path} cannot be opened (${errno}). Check that it exists and its permissions.`, {
      cause: error,
      details: { path, errno },
    });
  }
  try {
    const fileSize = fstatSync(fd).size;
    const length = headerLength(fd, path, fileSize);
    const text = readExactly(fd, path, 8, length, fileSize).toString('utf8');
    return parseHeader(path, fileSize, length, text);
  } finally {
    closeSync(fd);
  }
}

function headerLength(fd: number, path: string, fileSize: number): number {
  const start = readExactly(fd, path, 0, 8, fileSize);
  const length = start.readBigUInt64LE(0);
  if (length > BigInt(MAX_HEADER)) {
    const hint = start.toString('latin1').startsWith('version ') ? 'It is a Git LFS pointer: run `git lfs pull`.' : 'Fetch the file again.';
    throw invalid(path, `it starts with a header length of ${length} bytes, which no safetensors file has. ${hint}`);
  }
  return Number(length);
}

function readExactly(fd: number, path: string, at: number, length: number, fileSize: number): Buffer {
  if (at + length > fileSize) throw truncated(path, at + length, fileSize, 'its header');
  const buffer = Buffer.alloc(length);
  for (let done = 0; done < length; ) {
    const n = readSync(fd, buffer, done, length - done, at + done);
    if (n === 0) throw truncated(path, at + length, at + done, 'its header');
    done += n;
  }
  return buffer;
}

function parseHeader(path: string, fileSize: number, length: number, text: string): SafetensorsHeader {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw invalid(path, `its header is not valid JSON (${(error as Error).message}). Fetch the file again.`);
  }
  if (!isObject(json)) throw invalid(path, 'its header is not a JSON object. Fetch the file again.');
  const { __metadata__: metadata, ...rest } = json;
  const start = 8 + length;
  const tensors = new Map<string, TensorEntry>();
  for (const [name, value] of Object.entries(rest)) {
    const entry = parseEntry(path, name, value, start);
    const end = entry.offset + entry.byteLength;
    if (end > fileSize) throw truncated(path, end, fileSize, `tensor ${name}`);
    tensors.set(name, entry);
  }
  refuseOverlap(path, [...tensors.values()]);
  return { path, fileSize, text, metadata: isObject(metadata) ? (metadata as Record<string, string>) : {}, tensors };
}

function parseEntry(path: string, name: string, value: Json, start: number): TensorEntry {
  const count = (n: unknown): n is number => typeof n === 'number' && Number.isSafeInteger(n) && n >= 0;
  if (!isObject(value)) throw invalid(path, `the header's entry for ${name} is not an object.`);
  const { dtype, shape, data_offsets: offsets } = value;
  if (!DTYPES.includes(dtype as Dtype)) throw invalid(path, `${name} has type ${JSON.stringify(dtype)}; known are ${DTYPES.join(', ')}.`);
  if (!Array.isArray(shape) || !shape.every(count)) throw invalid(path, `${name} has shape ${JSON.stringify(shape)}, expected a list of sizes.`);
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(count))
    throw invalid(path, `${name} has offsets ${JSON.stringify(offsets)}, expected [begin, end].`);
  const [begin, end] = offsets as [number, number];
  const byteLength = (shape as number[]).reduce((product, n) => product * n, 1) * DTYPE_BYTES[dtype as Dtype];
  if (end - begin !== byteLength) {
    throw invalid(path, `${name} takes ${end - begin} bytes, but ${dtype} with shape [${shape.join(', ')}] needs ${byteLength}.`);
  }
  return { name, file: path, dtype: dtype as Dtype, shape: shape as number[], offset: start + begin, byteLength };
}

function refuseOverlap(path: string, entries: TensorEntry[]): void {
  entries.sort((a, b) => a.offset - b.offset);
  for (let i = 1; i < entries.length; i++) {
    const before = entries[i - 1]!;
    const entry = entries[i]!;
    if (before.byteLength > 0 && entry.byteLength > 0 && before.offset + before.byteLength > entry.offset) {
      throw invalid(path, `${before.name} and ${entry.name} overlap.`);
    }
  }
}

function invalid(path: string, what: string): TidemarkError {
  return new TidemarkError('MODEL_FILE_INVALID', `${path} is not a usable safetensors file: ${what}`, { details: { path } });
}

function truncated(path: string, expected: number, received: number, what: string): TidemarkError {
  return new TidemarkError(
    'MODEL_FILE_TRUNCATED',
    `${path} is ${received} bytes long, but ${what} reaches to byte ${expected}. The download is incomplete: fetch the file again.`,
    {
      details: { path, expected, received },
    },
  );
}
