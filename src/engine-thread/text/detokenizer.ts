/**
 * Token ids to text, one id at a time: never half a character, never text that may turn out to be a stop string.
 *
 * The pieces joined equal `Tokenizer.decode` of all ids (cut at the stop string).
 */
import { StopStrings } from './stop-strings.ts';
import type { Tokenizer } from './tokenizer.ts';

export interface DetokenizerOptions {
  /** Already validated by `validateStopStrings`. */
  stop?: readonly string[];
  /** Default true. */
  skipSpecialTokens?: boolean;
}

/** Bytes or ids in, whole characters out. */
interface PieceDecoder {
  push(id: number): string;
  finish(): string;
}

export class StreamingDetokenizer {
  readonly #decoder: PieceDecoder;
  readonly #stops: StopStrings;
  readonly #skip: ReadonlySet<number>;

  constructor(tokenizer: Tokenizer, options: DetokenizerOptions = {}) {
    this.#decoder = tokenizer.isByteLevel ? new ByteDecoder(tokenizer) : new WindowDecoder(tokenizer);
    this.#stops = new StopStrings(options.stop ?? []);
    this.#skip = (options.skipSpecialTokens ?? true) ? tokenizer.specialIds : new Set();
  }

  /** The stop string that was met; once set, `push` and `finish` give nothing more. */
  get stopped(): string | null {
    return this.#stops.matched;
  }

  /** Adds one id and returns the text that became certain, often ''. */
  push(id: number): string {
    if (this.#skip.has(id) || this.stopped !== null) return '';
    return this.#stops.push(this.#decoder.push(id));
  }

  /** The end of the answer: what was held back. Bytes that never became a character show as U+FFFD. */
  finish(): string {
    const text = this.#stops.push(this.#decoder.finish());
    return this.stopped === null ? text + this.#stops.finish() : text;
  }
}

/** Byte-level BPE: the platform's streaming UTF-8 decoder holds incomplete characters. */
class ByteDecoder implements PieceDecoder {
  readonly #tokenizer: Tokenizer;
  readonly #utf8 = new TextDecoder('utf-8', { ignoreBOM: true });

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
  }

  push(id: number): string {
    const bytes = this.#tokenizer.bytesOf(id);
    // Added tokens are text of their own: a character cannot reach across one.
    if (this.#tokenizer.isAdded(id)) return this.#utf8.decode() + new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
    return this.#utf8.decode(bytes, { stream: true });
  }

  finish(): string {
    return this.#utf8.decode();
  }
}

/**
 * Any other decoder: a piece's text depends on its neighbours (joined words, merged bytes), so a short window is
 * decoded with and without the new ids, and the difference is given out once it ends in a whole character.
 */
class WindowDecoder implements PieceDecoder {
  readonly #tokenizer: Tokenizer;
  /** Ids of the window; those before `#read` have been given out and are context only. */
  #ids: number[] = [];
  #read = 0;
  #given = '';

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
  }

  push(id: number): string {
    this.#ids.push(id);
    const text = this.#decode(this.#ids);
    // U+FFFD at the end: bytes of a character whose rest has not come yet.
    if (text.length <= this.#given.length || text.endsWith('\ufffd')) return '';
    return this.#give(text);
  }

  finish(): string {
    const text = this.#decode(this.#ids);
    return text.length > this.#given.length ? this.#give(text) : '';
  }

  #give(text: string): string {
    const piece = text.slice(this.#given.length);
    // The next window starts behind what was context so far, unless it would then read differently (a decoder may
    // drop a leading space or byte order mark): in that case the context stays.
    const shorter = this.#ids.slice(this.#read);
    const reading = this.#decode(shorter);
    if (reading !== '' && text.endsWith(reading)) {
      this.#ids = shorter;
      this.#given = reading;
    } else {
      this.#given = text;
    }
    this.#read = this.#ids.length;
    return piece;
  }

  #decode(ids: readonly number[]): string {
    return this.#tokenizer.decode(ids, { skipSpecialTokens: false });
  }
}
