/**
 * Block identity: a chain of SHA-256 hashes over everything that decides what a block's bytes are.
 *
 * hash = SHA-256( "tidemark-block-v1" ‖ str(fingerprint) ‖ u32le(n) ‖ parent[n] (0 or 32 bytes) ‖ u32le(tokens) ‖
 *                 token ids as u32le ‖ u32le(keys) ‖ str(key) for each extra key, sorted by bytes )
 * where str(s) = u32le(byte length) ‖ UTF-8 bytes. A block of fewer tokens than the block size (prompt and message
 * ends) hashes its own length, so it never equals the full block that starts with the same tokens.
 */
import { hash } from 'node:crypto';
import { endianness } from 'node:os';

const TAG = Buffer.from('tidemark-block-v1', 'ascii');

/** What all blocks of one chain have in common. */
export interface ChainIdentity {
  /** Model fingerprint: weights, config, tokenizer, adapters, cache layout, format version. */
  readonly fingerprint: string;
  /** Tenant salt, numerics class, media hashes: whatever else changes bits. Order does not matter. */
  readonly extraKeys: readonly string[];
}

function u32(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(4);
  bytes.writeUInt32LE(value, 0);
  return bytes;
}

function lengthPrefixed(text: string): Buffer {
  const bytes = Buffer.from(text, 'utf8');
  return Buffer.concat([u32(bytes.length), bytes]);
}

const LITTLE_ENDIAN = endianness() === 'LE';

/** Token ids as little-endian bytes, on any machine. May share the memory of `tokens`: read it at once. */
export function tokenBytes(tokens: Uint32Array): Uint8Array {
  if (LITTLE_ENDIAN) return new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
  const bytes = new Uint8Array(tokens.length * 4);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < tokens.length; i += 1) view.setUint32(i * 4, tokens[i]!, true);
  return bytes;
}

/** The inverse of `tokenBytes`; null when the length is no multiple of 4. */
export function tokensFromBytes(bytes: Uint8Array): Uint32Array | null {
  if (bytes.length % 4 !== 0) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const tokens = new Uint32Array(bytes.length / 4);
  for (let i = 0; i < tokens.length; i += 1) tokens[i] = view.getUint32(i * 4, true);
  return tokens;
}

/** Hashes the blocks of one chain; the parts that never change are prepared once. */
export class ChainHasher {
  readonly #head: Buffer;
  readonly #keys: Buffer;

  constructor(identity: ChainIdentity) {
    this.#head = Buffer.concat([TAG, lengthPrefixed(identity.fingerprint)]);
    const keys = identity.extraKeys.map(lengthPrefixed).sort((a, b) => Buffer.compare(a.subarray(4), b.subarray(4)));
    this.#keys = Buffer.concat([u32(keys.length), ...keys]);
  }

  /** Hash of the block with `tokens` after `parent` ('' for the first block), as 64 lower-case hex digits. */
  block(parent: string, tokens: Uint32Array): string {
    const parentBytes = Buffer.from(parent, 'hex');
    if (parentBytes.length !== (parent === '' ? 0 : 32)) throw new RangeError(`parent must be '' or 64 hex digits, got '${parent}'`);
    return hash('sha256', Buffer.concat([this.#head, u32(parentBytes.length), parentBytes, u32(tokens.length), tokenBytes(tokens), this.#keys]), 'hex');
  }

  /** Hashes of all full blocks of `tokens`, first to last. */
  fullBlocks(tokens: Uint32Array, blockSize: number): string[] {
    const hashes: string[] = [];
    let parent = '';
    for (let end = blockSize; end <= tokens.length; end += blockSize) {
      parent = this.block(parent, tokens.subarray(end - blockSize, end));
      hashes.push(parent);
    }
    return hashes;
  }
}
