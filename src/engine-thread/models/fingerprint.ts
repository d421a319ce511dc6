/**
 * What a model is, for the cache: stored state of one model must never be used by another.
 *
 * Covers what changes bits: configuration, tokenizer, weights, adapters, and how this library lays out its caches. Weights
 * are told apart by size, header and samples of every tensor, not by name or time; small tensors are read whole. A
 * replaced tensor is noticed, and so is a fine-tuned one; a single changed value between two samples is not.
 */
import { createHash, type Hash } from 'node:crypto';
import { closeSync, openSync, readFileSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { openModelFolder } from './config.ts';
import type { SafetensorsHeader, TensorEntry } from './safetensors.ts';
import { readSafetensorsHeader } from './safetensors.ts';
import { readTensorIndex } from './tensor-index.ts';

/** Changes whenever stored cache state of the same model would be read differently. */
const LAYOUT = 'tidemark-layout-v1';

const SAMPLES = 8;
const SAMPLE_BYTES = 256;

export interface FingerprintOptions {
  /** Safetensors files applied on top of the weights. */
  readonly adapters?: readonly string[];
}

/**
 * @returns 64 hex digits
 * @throws {TidemarkError} as `loadModel` does for the folder and its headers
 */
export function modelFingerprint(dir: string, options: FingerprintOptions = {}): string {
  const folder = openModelFolder(dir);
  const hash = createHash('sha256');
  field(hash, 'layout', LAYOUT);
  field(hash, 'config', readFileSync(folder.configPath));
  for (const name of ['tokenizer.json', 'tokenizer_config.json']) field(hash, name, optionalFile(join(dir, name)));
  // Sorted by content: the same shards under other names are the same model.
  for (const digest of readTensorIndex(dir).files.map(fileDigest).sort()) field(hash, 'weights', digest);
  for (const path of options.adapters ?? []) field(hash, 'adapter', fileDigest(readSafetensorsHeader(path)));
  return hash.digest('hex');
}

/** Lengths before contents: no two lists of fields give the same bytes. */
function field(hash: Hash, name: string, value: string | Uint8Array): void {
  const bytes = typeof value === 'string' ? Buffer.from(value) : value;
  hash.update(`${name}:${bytes.length}:`).update(bytes);
}

function optionalFile(path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return new Uint8Array(0);
    throw error;
  }
}

function fileDigest(file: SafetensorsHeader): string {
  const hash = createHash('sha256');
  field(hash, 'size', String(file.fileSize));
  field(hash, 'header', file.text);
  const fd = openSync(file.path, 'r');
  try {
    for (const entry of file.tensors.values()) for (const at of samplePlaces(entry)) hash.update(readAt(fd, at.offset, at.length));
  } finally {
    closeSync(fd);
  }
  return hash.digest('hex');
}

/** The whole of a small tensor; of a large one evenly spaced pieces, the first and the last bytes among them. */
function samplePlaces({ offset, byteLength }: TensorEntry): { offset: number; length: number }[] {
  if (byteLength <= SAMPLES * SAMPLE_BYTES) return [{ offset, length: byteLength }];
  const stride = (byteLength - SAMPLE_BYTES) / (SAMPLES - 1);
  return Array.from({ length: SAMPLES }, (_, i) => ({ offset: offset + Math.floor(i * stride), length: SAMPLE_BYTES }));
}

function readAt(fd: number, offset: number, length: number): Buffer {
  const buffer = Buffer.alloc(length);
  let done = 0;
  while (done < length) {
    const n = readSync(fd, buffer, done, length - done, offset + done);
    if (n === 0) break; // cut since its header was read: what is missing counts as zeros, and loading will say so
    done += n;
  }
  return buffer;
}
