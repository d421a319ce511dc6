/**
 * Interned strings in shared memory: append-only, equal strings get equal ids, no lock.
 *
 * Layout: an open-addressed table of offsets, then the bytes. An entry is published by one compare-and-swap of its table
 * word, after its bytes were written; the loser of a race for one word compares with the winner and probes on. Bytes of a
 * lost race are wasted, never reused. When the space is used up, new strings become id 0, which reads as '?'.
 */
const TABLE = 1024;
const MAX_BYTES = 255;

export class StringTable {
  static readonly WORDS = 1 + TABLE + 12 * 1024;

  readonly #words: Int32Array;
  readonly #bytes: Buffer;
  readonly #ids = new Map<string, number>();
  readonly #texts = new Map<number, string>();

  /** `words` is a view of exactly `WORDS` words, zeroed at creation: [used, table, bytes]. */
  constructor(words: Int32Array) {
    this.#words = words;
    this.#bytes = Buffer.from(
      words.buffer as SharedArrayBuffer as unknown as ArrayBuffer,
      words.byteOffset + (1 + TABLE) * 4,
      (StringTable.WORDS - 1 - TABLE) * 4,
    );
  }

  /** The id of `text` (cut to 255 bytes); 0 when the table is full or the text is empty. */
  intern(text: string): number {
    const known = this.#ids.get(text);
    if (known !== undefined) return known;
    const id = text === '' ? 0 : this.#insert(text);
    this.#ids.set(text, id);
    return id;
  }

  #insert(text: string): number {
    const encoded = Buffer.from(text, 'utf8').subarray(0, MAX_BYTES);
    const words = this.#words;
    let offset = 0;
    let slot = hash(encoded);
    for (let probes = 0; probes < TABLE; probes++, slot = (slot + 1) % TABLE) {
      let found = Atomics.load(words, 1 + slot);
      if (found === 0) {
        if (offset === 0) offset = this.#append(encoded);
        if (offset === 0) return 0;
        found = Atomics.compareExchange(words, 1 + slot, 0, offset);
        if (found === 0) return offset;
      }
      if (this.#at(found).equals(encoded)) return found;
    }
    return 0;
  }

  /** Writes length and bytes to fresh space; the id is the offset + 1. */
  #append(encoded: Buffer): number {
    const start = Atomics.add(this.#words, 0, encoded.length + 1);
    if (start < 0 || start + 1 + encoded.length > this.#bytes.length) {
      Atomics.store(this.#words, 0, this.#bytes.length);
      return 0;
    }
    this.#bytes[start] = encoded.length;
    encoded.copy(this.#bytes, start + 1);
    return start + 1;
  }

  #at(id: number): Buffer {
    const start = id - 1;
    return this.#bytes.subarray(start + 1, start + 1 + this.#bytes[start]!);
  }

  read(id: number): string {
    if (id <= 0 || id > this.#bytes.length) return '?';
    let text = this.#texts.get(id);
    if (text === undefined) {
      text = this.#at(id).toString('utf8');
      this.#texts.set(id, text);
    }
    return text;
  }
}

/** FNV-1a. */
function hash(bytes: Uint8Array): number {
  let h = 0x811c9dc5;
  for (const byte of bytes) h = Math.imul(h ^ byte, 0x01000193);
  return (h >>> 0) % TABLE;
}
