/** A restore request as bytes: u32le JSON length, JSON, padding to 4, token ids as u32le. */
import type { LookupRequest } from './chain-lookup.ts';
import { tokenBytes, tokensFromBytes } from './identity.ts';

export interface RestoreRequest extends LookupRequest {
  /** Moment on the clock of `sync/clock.ts` after which the answer is not wanted any more. */
  readonly deadline: number;
}

export function encodeRestoreRequest(request: RestoreRequest): Uint8Array {
  const { tokens, ...rest } = request;
  const json = Buffer.from(JSON.stringify(rest), 'utf8');
  const tokensAt = 4 + Math.ceil(json.length / 4) * 4;
  const bytes = new Uint8Array(tokensAt + tokens.length * 4);
  new DataView(bytes.buffer).setUint32(0, json.length, true);
  bytes.set(json, 4);
  bytes.set(tokenBytes(tokens), tokensAt);
  return bytes;
}

export function decodeRestoreRequest(bytes: Uint8Array): RestoreRequest {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const rest = JSON.parse(Buffer.from(bytes.subarray(4, 4 + length)).toString('utf8')) as Omit<RestoreRequest, 'tokens'>;
  return { ...rest, tokens: tokensFromBytes(bytes.subarray(4 + Math.ceil(length / 4) * 4)) ?? new Uint32Array(0) };
}
