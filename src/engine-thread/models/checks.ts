/** Small checks and wordings shared by everything that reads a model folder or a request. */
import { TidemarkError } from '../../shared/errors.ts';

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** True for `{}`-like JSON values; arrays and null are not objects here. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A short description of a wrong value for an error message: strings quoted, long things cut. */
export function describeValue(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'number' || typeof value === 'bigint') return String(value);
  let text: string;
  try {
    text = JSON.stringify(value) ?? typeof value;
  } catch {
    text = typeof value; // a cycle: the type is all that can be said
  }
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}

/** INVALID_ARGUMENT naming the field, what was expected and what came. */
export function invalidArgument(field: string, expected: string, received: unknown): TidemarkError {
  const shown = describeValue(received);
  return new TidemarkError('INVALID_ARGUMENT', `${field}: expected ${expected}, received ${shown}.`, { details: { field, expected, received: shown } });
}
