/**
 * What identifies a model's bits for the cache (design section 6): every shard's size and header, samples of every
 * tensor, the configuration and the tokenizer. Never a name, a path or a time: a copied folder is the same model, and a
 * folder whose weights were exchanged under the same name is another.
 */
import { createHash, type Hash } from 'node:crypto';
import { closeSync, openSync, readFileSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { readTensorIndex } from './tensor-index.ts';

/** Of the cache layout and of the forward pass: raised when either changes the bytes of a stored state. */
const LAYOUT_VERSION = 'tidemark-model-v1';
/** Bytes read at the beginning, in the middle and at the end of each tensor. */
const SAMPLE_BYTES = 1024;
const TEXT_FILES = ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'adapter_config.json'];

/** SHA-256 as 64 hex digits. Reads at most 3 KiB of each tensor. */
export function modelFingerprint(dir: string): string {
  const hash = createHash('sha256').update(LAYOUT_VERSION);
  for (const name of TEXT_FILES) field(hash, name, readOptional(join(dir, name)));
  for (const file of readTensorIndex(dir).files) {
    field(hash, 'size', String(file.fileSize));
    field(hash, 'header', file.text);
    const fd = openSync(file.path, 'r');
    try {
      for (const { offset, byteLength } of file.tensors.values()) sample(hash, fd, offset, byteLength);
    } finally {
      closeSync(fd);
    }
  }
  return hash.digest('hex');
}

/** Length-prefixed, so that no two lists of fields give the same bytes. */
function field(hash: Hash, name: string, value: string | Buffer): void {
  const bytes = Buffer.from(value);
  hash.update(`${name}:${bytes.length}:`).update(bytes);
}

function readOptional(path: string): string | Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}

function sample(hash: Hash, fd: number, offset: number, byteLength: number): void {
  const length = Math.min(SAMPLE_BYTES, byteLength);
  const buffer = Buffer.alloc(length);
  for (const at of new Set([0, Math.floor((byteLength - length) / 2), byteLength - length])) {
    const read = readSync(fd, buffer, 0, length, offset + at);
    hash.update(buffer.subarray(0, read));
  }
}
