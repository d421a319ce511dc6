/**
 * Checksums of a block file, and the one place that writes them.
 *
 * A tensor's checksum is xxh64 of its payload, seeded with the first 8 bytes (little-endian) of
 * SHA-256(block hash ‖ part ‖ tensor name): bytes of another block, part or tensor never pass, even when they are whole.
 * `tm.header` is xxh64 over block hash ‖ part ‖ length prefix ‖ header, with its own 16 digits read as '0'.
 * They find damage, not forgery.
 */
import { createHash } from 'node:crypto';
import { createRequire } from 'node:module';
import type { BlockPart } from '../layer-state.ts';
import type { PagedBytes } from './paged-bytes.ts';

// The package is CommonJS with a native binding; require() keeps one load path for every thread.
const { Xxh64 } = createRequire(import.meta.url)('@node-rs/xxhash') as typeof import('@node-rs/xxhash');

export const SUM_DIGITS = 16;
export const ZERO_DIGITS = '0'.repeat(SUM_DIGITS);

/** 64-bit value as 16 lower-case hex digits. */
export function sumDigits(value: bigint): string {
  return value.toString(16).padStart(SUM_DIGITS, '0');
}

export function tensorSeed(blockHash: string, part: BlockPart, name: string): bigint {
  return createHash('sha256').update(Buffer.from(blockHash, 'hex')).update(part).update(name).digest().readBigUInt64LE(0);
}

/** Checksum of bytes [from, to) of the file as the payload of tensor `name`. */
export function tensorSum(bytes: PagedBytes, from: number, to: number, seed: bigint): string {
  const hash = new Xxh64(seed);
  for (const segment of bytes.segments(from, to)) hash.update(segment);
  return sumDigits(hash.digest());
}

/** Checksum of `header` (length prefix included); `digitsAt` is where the 16 digits of `tm.header` start in it. */
export function headerSum(header: Uint8Array, digitsAt: number, blockHash: string, part: BlockPart): string {
  const hash = new Xxh64(0n);
  hash.update(Buffer.from(blockHash, 'hex')).update(part);
  hash
    .update(header.subarray(0, digitsAt))
    .update(ZERO_DIGITS)
    .update(header.subarray(digitsAt + SUM_DIGITS));
  return sumDigits(hash.digest());
}

/** Where the digits of metadata key `key` start in `header`; -1 when the key is not there exactly once. */
export function digitsOffset(header: Uint8Array, key: string, searchFrom = 0): number {
  const buffer = Buffer.from(header.buffer, header.byteOffset, header.byteLength);
  // Inside a JSON string this byte sequence would have its quotes escaped, so only a real key matches.
  const needle = `"${key}":"`;
  const at = buffer.indexOf(needle, searchFrom, 'latin1');
  if (at < 0 || buffer.indexOf(needle, at + needle.length, 'latin1') >= 0) return -1;
  return at + needle.length;
}
