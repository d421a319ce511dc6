/**
 * How boundaries are named: by the SHA-256 of the request id and a token count. No path is ever made from an id itself.
 */
import { createHash } from 'node:crypto';

/** Eight words, little-endian, of SHA-256(UTF-8 request id). */
export type RequestKey = Int32Array;

export const KEY_WORDS = 8;

const MAX_TOKENS = 0x7fffffff;

/** Request ids are non-empty strings; anything else has no key. */
export function requestKey(requestId: unknown): RequestKey | null {
  if (typeof requestId !== 'string' || requestId === '') return null;
  if (last?.id === requestId) return last.key;
  const key = keyFromBytes(createHash('sha256').update(requestId, 'utf8').digest());
  last = { id: requestId, key };
  return key;
}

/** A boundary asks for its request's key several times in a row. */
let last: { readonly id: string; readonly key: RequestKey } | null = null;

export function keyFromBytes(bytes: Uint8Array): RequestKey {
  const view = new DataView(bytes.buffer, bytes.byteOffset, KEY_WORDS * 4);
  const key = new Int32Array(KEY_WORDS);
  for (let i = 0; i < KEY_WORDS; i++) key[i] = view.getInt32(i * 4, true);
  return key;
}

/** 64 lower-case hex digits: the name of the request's staging folder. */
export function keyToHex(key: RequestKey): string {
  const bytes = Buffer.alloc(KEY_WORDS * 4);
  for (let i = 0; i < KEY_WORDS; i++) bytes.writeInt32LE(key[i]!, i * 4);
  return bytes.toString('hex');
}

/** Token counts of boundaries are positive integers that fit a word. */
export function isTokenCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value > 0 && value <= MAX_TOKENS;
}

/** Whether the key lies at `at` in `words`. */
export function keyIsAt(words: Int32Array, at: number, key: RequestKey): boolean {
  for (let i = 0; i < KEY_WORDS; i++) if (words[at + i] !== key[i]) return false;
  return true;
}
