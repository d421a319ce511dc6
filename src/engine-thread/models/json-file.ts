import { readFileSync } from 'node:fs';
import { type ErrorCode, TidemarkError } from '../../shared/errors.ts';
import { describeValue, isObject, type JsonObject } from './checks.ts';

/** Which code a problem gets. `missing: null` makes the file optional. */
export interface JsonFileCodes {
  missing: ErrorCode | null;
  invalid: ErrorCode;
}

/**
 * Reads a JSON file whose top level must be an object.
 *
 * @returns null when the file does not exist and is optional
 * @throws {TidemarkError} with the given codes
 */
export function readJsonObject(path: string, codes: JsonFileCodes): JsonObject | null {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const errno = (error as NodeJS.ErrnoException).code;
    if (errno === 'ENOENT' || errno === 'ENOTDIR') {
      if (codes.missing === null) return null;
      throw new TidemarkError(codes.missing, `${path} does not exist. Pass the folder of an MLX model: config.json, *.safetensors and tokenizer.json.`, {
        details: { path },
      });
    }
    throw new TidemarkError(codes.invalid, `${path} cannot be read (${errno ?? String(error)}). Check its permissions.`, {
      cause: error,
      details: { path, errno },
    });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const hint = text.startsWith('version https://git-lfs')
      ? 'It is a Git LFS pointer: run `git lfs pull`.'
      : 'The download may be incomplete: fetch the file again.';
    throw new TidemarkError(codes.invalid, `${path} is not valid JSON (${(error as Error).message}). ${hint}`, { cause: error, details: { path } });
  }
  if (isObject(value)) return value;
  const received = describeValue(value);
  throw new TidemarkError(codes.invalid, `${path}: expected a JSON object, received ${received}.`, { details: { path, expected: 'object', received } });
}
