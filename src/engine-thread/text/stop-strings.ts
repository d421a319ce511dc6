/**
 * Ends a text before the first of several strings, while it streams.
 *
 * Text that could still become a stop string is held back. "First" is the occurrence that is complete first, so the
 * result does not depend on how the text was cut into pieces.
 */
import { invalidArgument } from '../models/checks.ts';

export const MAX_STOP_STRINGS = 64;

/** @throws {TidemarkError} INVALID_ARGUMENT for anything but non-empty, well-formed strings */
export function validateStopStrings(value: unknown): string[] {
  if (value === undefined || value === null) return [];
  const list: unknown = typeof value === 'string' ? [value] : value;
  if (!Array.isArray(list)) throw invalidArgument('stop', 'a string or a list of strings', value);
  if (list.length > MAX_STOP_STRINGS) throw invalidArgument('stop', `at most ${MAX_STOP_STRINGS} strings`, list.length);
  list.forEach((entry: unknown, i) => {
    if (typeof entry !== 'string' || entry === '') throw invalidArgument(`stop[${i}]`, 'a non-empty string', entry);
    // A lone surrogate never occurs in decoded text, and holding one back would split a character.
    else if (/\p{Surrogate}/u.test(entry)) throw invalidArgument(`stop[${i}]`, 'a string without lone surrogates', entry);
  });
  return [...new Set(list as string[])];
}

export class StopStrings {
  readonly #stops: readonly string[];
  #held = '';
  #matched: string | null = null;

  constructor(stops: readonly string[]) {
    this.#stops = stops;
  }

  /** The stop string that ended the text, if any. */
  get matched(): string | null {
    return this.#matched;
  }

  /** Adds text; returns what is now certain to belong to the answer. Nothing more comes after a match. */
  push(text: string): string {
    if (this.#matched !== null) return '';
    if (this.#stops.length === 0) return text;
    const buffer = this.#held + text;
    let end = Infinity;
    let start = 0;
    for (const stop of this.#stops) {
      const at = buffer.indexOf(stop);
      if (at < 0) continue;
      const last = at + stop.length;
      // Completed first wins; among those completed together, the longer one (it cuts earlier).
      if (last < end || (last === end && at < start)) {
        end = last;
        start = at;
        this.#matched = stop;
      }
    }
    if (this.#matched !== null) {
      this.#held = '';
      return buffer.slice(0, start);
    }
    const keep = this.#longestBeginning(buffer);
    this.#held = buffer.slice(buffer.length - keep);
    return buffer.slice(0, buffer.length - keep);
  }

  /** The text has ended by itself: gives out what was held back. */
  finish(): string {
    const rest = this.#held;
    this.#held = '';
    return rest;
  }

  /** Length of the longest end of `text` that is the beginning of a stop string. */
  #longestBeginning(text: string): number {
    let longest = 0;
    for (const stop of this.#stops) {
      for (let n = Math.min(stop.length - 1, text.length); n > longest; n--) {
        if (text.endsWith(stop.slice(0, n))) {
          longest = n;
          break;
        }
      }
    }
    return longest;
  }
}
