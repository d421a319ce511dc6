/**
 * Reads fields of config.json with their limits.
 *
 * A model file is input from outside: a wrong value must be named here, with what was expected, and not surface later
 * as a shape error in the middle of a forward pass.
 */
import { TidemarkError } from '../../shared/errors.ts';
import { describeValue, isObject, type Json, type JsonObject } from './checks.ts';

export interface NumberLimits {
  min?: number;
  max?: number;
}

export class ConfigReader {
  readonly #values: JsonObject;
  readonly #path: string;
  readonly #prefix: string;

  /** @param prefix dotted path of `values` inside the file, '' for the top level */
  constructor(values: JsonObject, path: string, prefix = '') {
    this.#values = values;
    this.#path = path;
    this.#prefix = prefix;
  }

  raw(field: string): Json | undefined {
    return this.#values[field];
  }

  /** A required integer, or an optional one when `fallback` is given. Absent and null are the same. */
  int(field: string, limits: NumberLimits = {}, fallback?: number): number {
    const { min = 1, max = 2 ** 31 - 1 } = limits;
    return this.#number(field, `an integer from ${min} to ${max}`, (v) => Number.isInteger(v) && v >= min && v <= max, fallback);
  }

  number(field: string, limits: NumberLimits = {}, fallback?: number): number {
    const { min = -Infinity, max = Infinity } = limits;
    const range = Number.isFinite(min) || Number.isFinite(max) ? ` from ${min} to ${max}` : '';
    return this.#number(field, `a number${range}`, (v) => Number.isFinite(v) && v >= min && v <= max, fallback);
  }

  bool(field: string, fallback: boolean): boolean {
    const value = this.#values[field] ?? fallback;
    if (typeof value !== 'boolean') throw this.error(field, 'true or false', value);
    return value;
  }

  /** One of a few words. */
  word<W extends string>(field: string, words: readonly W[], fallback?: W): W {
    const value = this.#values[field] ?? fallback;
    if (!words.includes(value as W)) throw this.error(field, `one of ${words.join(', ')}`, value);
    return value as W;
  }

  /** A list of exactly `length` entries, each one of `words`; null when absent. */
  words<W extends string>(field: string, words: readonly W[], length: number): W[] | null {
    const value = this.#values[field] ?? null;
    if (value === null) return null;
    const fits = Array.isArray(value) && value.length === length && value.every((entry) => words.includes(entry as W));
    if (!fits) throw this.error(field, `a list of ${length} entries out of ${words.join(', ')}`, value);
    return value as W[];
  }

  /** A nested object; null when absent. */
  section(field: string): ConfigReader | null {
    const value = this.#values[field] ?? null;
    if (value === null) return null;
    if (!isObject(value)) throw this.error(field, 'an object', value);
    return new ConfigReader(value, this.#path, this.#name(field));
  }

  error(field: string, expected: string, received: unknown): TidemarkError {
    const name = this.#name(field);
    const shown = describeValue(received);
    return new TidemarkError('MODEL_CONFIG_INVALID', `${this.#path}: ${name}: expected ${expected}, received ${shown}.`, {
      details: { path: this.#path, field: name, expected, received: shown },
    });
  }

  #number(field: string, expected: string, holds: (value: number) => boolean, fallback: number | undefined): number {
    const value = this.#values[field] ?? fallback;
    if (typeof value !== 'number' || !holds(value)) throw this.error(field, expected, value);
    return value;
  }

  #name(field: string): string {
    return this.#prefix === '' ? field : `${this.#prefix}.${field}`;
  }
}
