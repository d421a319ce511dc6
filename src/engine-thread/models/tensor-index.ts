/** All tensors of a model folder by name, whether it has one weight file or shards with an index. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { TidemarkError } from '../../shared/errors.ts';
import { isObject } from './checks.ts';
import { readJsonObject } from './json-file.ts';
import { readSafetensorsHeader, type SafetensorsHeader, type TensorEntry } from './safetensors.ts';

export interface TensorIndex {
  readonly files: readonly SafetensorsHeader[];
  readonly tensors: ReadonlyMap<string, TensorEntry>;
}

const INDEX = 'model.safetensors.index.json';

/**
 * Reads every header of the folder's weight files.
 *
 * With an index, exactly its files are read, and each tensor must be in the file the index names. Without one, all
 * `model*.safetensors` (or, if there are none, all `*.safetensors`) are.
 *
 * @throws {TidemarkError} MODEL_NOT_FOUND, MODEL_TENSOR_MISSING, MODEL_FILE_TRUNCATED, MODEL_FILE_INVALID
 */
export function readTensorIndex(dir: string): TensorIndex {
  const indexPath = join(dir, INDEX);
  const index = readJsonObject(indexPath, { missing: null, invalid: 'MODEL_FILE_INVALID' });
  if (index === null) return collect(weightFiles(dir).map((name) => readSafetensorsHeader(join(dir, name))));

  const map = index.weight_map;
  if (!isObject(map) || !Object.values(map).every((file) => typeof file === 'string')) {
    throw new TidemarkError('MODEL_FILE_INVALID', `${indexPath}: weight_map: expected an object of tensor name to file name.`, {
      details: { path: indexPath },
    });
  }
  const places = Object.entries(map as Record<string, string>);
  const names = [...new Set(places.map(([, file]) => file))].sort();
  for (const name of names) requireShard(dir, indexPath, name);
  const result = collect(names.map((name) => readSafetensorsHeader(join(dir, name))));
  for (const [tensor, file] of places) {
    if (result.tensors.get(tensor)?.file === join(dir, file)) continue;
    throw new TidemarkError(
      'MODEL_TENSOR_MISSING',
      `${indexPath} says that ${tensor} is in ${file}, but it is not. Index and shards are of different downloads: fetch all again.`,
      {
        details: { path: join(dir, file), tensor },
      },
    );
  }
  return result;
}

function requireShard(dir: string, indexPath: string, name: string): void {
  const path = join(dir, name);
  if (name.includes('/') || name.includes('\\')) {
    throw new TidemarkError('MODEL_FILE_INVALID', `${indexPath}: weight_map names ${JSON.stringify(name)}; shards lie beside the index.`, {
      details: { path: indexPath },
    });
  }
  if (existsSync(path)) return;
  throw new TidemarkError('MODEL_TENSOR_MISSING', `${path} does not exist, but ${INDEX} needs it. The download is incomplete: fetch the file.`, {
    details: { path },
  });
}

function weightFiles(dir: string): string[] {
  const all = readdirSync(dir)
    .filter((name) => name.endsWith('.safetensors') && !name.startsWith('.'))
    .sort();
  const model = all.filter((name) => name.startsWith('model'));
  const names = model.length > 0 ? model : all;
  if (names.length === 0) {
    throw new TidemarkError(
      'MODEL_NOT_FOUND',
      `${dir} has no *.safetensors file. Pass the folder of an MLX model: config.json, *.safetensors and tokenizer.json.`,
      { details: { path: dir } },
    );
  }
  return names;
}

function collect(files: SafetensorsHeader[]): TensorIndex {
  const tensors = new Map<string, TensorEntry>();
  for (const file of files) {
    for (const [name, entry] of file.tensors) {
      const other = tensors.get(name);
      if (other !== undefined) {
        throw new TidemarkError(
          'MODEL_FILE_INVALID',
          `Tensor ${name} is in both ${other.file} and ${file.path}. Remove the file that does not belong to the model.`,
          {
            details: { path: file.path, tensor: name },
          },
        );
      }
      tensors.set(name, entry);
    }
  }
  return { files, tensors };
}
