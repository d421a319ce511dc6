/**
 * Byte-level BPE writes each byte as one printable character. This is the table back to bytes.
 *
 * Printable Latin-1 characters stand for themselves; the other 68 byte values are numbered upwards from U+0100.
 */
import { isObject, type Json } from '../models/checks.ts';

const CODE_TO_BYTE = new Int16Array(0x200).fill(-1);
{
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
    CODE_TO_BYTE[printable ? byte : next++] = byte;
  }
}

/** The bytes of a vocabulary entry. Characters outside the table (there are none in a sound vocabulary) give no byte. */
export function byteLevelBytes(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length);
  let length = 0;
  for (let i = 0; i < token.length; i++) {
    const byte = CODE_TO_BYTE[token.charCodeAt(i)] ?? -1;
    if (byte >= 0) bytes[length++] = byte;
  }
  return bytes.subarray(0, length);
}

/** Whether tokenizer.json's decoder is byte-level, alone or as the only step of a sequence. */
export function isByteLevel(decoder: Json): boolean {
  if (!isObject(decoder)) return false;
  if (decoder.type === 'ByteLevel') return true;
  const steps = decoder.decoders;
  return decoder.type === 'Sequence' && Array.isArray(steps) && steps.length === 1 && isByteLevel(steps[0]!);
}
