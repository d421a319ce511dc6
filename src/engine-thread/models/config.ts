/** config.json of a model folder: the file itself and the parts every family shares. */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { TidemarkError } from '../../shared/errors.ts';
import { isObject, type JsonObject } from './checks.ts';
import { ConfigReader } from './config-reader.ts';
import { readJsonObject } from './json-file.ts';

export interface ModelFolder {
  readonly dir: string;
  readonly configPath: string;
  readonly config: JsonObject;
  readonly modelType: string;
}

/** How one layer's weights are packed. */
export interface QuantizationSpec {
  readonly groupSize: number;
  readonly bits: number;
  readonly mode: QuantizationMode;
}

/** 'affine': codes with a scale and a bias per group. The others: small floats with one shared exponent per group. */
export type QuantizationMode = 'affine' | 'mxfp4' | 'mxfp8';

/** The model's default and the layers that differ from it (`false`: not quantized). */
export interface Quantization {
  readonly default: QuantizationSpec;
  readonly overrides: ReadonlyMap<string, QuantizationSpec | false>;
}

/**
 * Opens a model folder.
 *
 * @throws {TidemarkError} MODEL_NOT_FOUND, MODEL_CONFIG_INVALID
 */
export function openModelFolder(dir: string): ModelFolder {
  const stats = statSync(dir, { throwIfNoEntry: false });
  if (stats === undefined || !stats.isDirectory()) {
    const what = stats === undefined ? 'does not exist' : 'is a file, not a folder';
    throw new TidemarkError('MODEL_NOT_FOUND', `${dir} ${what}. Pass the folder of an MLX model: config.json, *.safetensors and tokenizer.json.`, {
      details: { path: dir },
    });
  }
  const configPath = join(dir, 'config.json');
  const config = readJsonObject(configPath, { missing: 'MODEL_NOT_FOUND', invalid: 'MODEL_CONFIG_INVALID' })!;
  const { model_type: modelType } = config;
  if (typeof modelType !== 'string' || modelType === '') {
    throw new ConfigReader(config, configPath).error('model_type', 'a non-empty string', modelType);
  }
  return { dir, configPath, config, modelType };
}

const BITS: Record<QuantizationMode, readonly number[]> = { affine: [2, 3, 4, 5, 6, 8], mxfp4: [4], mxfp8: [8] };
const GROUP_SIZES: Record<QuantizationMode, readonly number[]> = { affine: [32, 64, 128], mxfp4: [32], mxfp8: [32] };

/**
 * MLX's `quantization` section: `{ group_size, bits, mode }` plus one entry for each layer that differs.
 *
 * @returns null for a model that is not quantized
 * @throws {TidemarkError} MODEL_QUANTIZATION_UNSUPPORTED, MODEL_CONFIG_INVALID
 */
export function readQuantization(folder: ModelFolder): Quantization | null {
  const { config, configPath } = folder;
  const mlx = config.quantization ?? null;
  if (mlx === null) {
    const other = config.quantization_config ?? null;
    if (other === null) return null;
    if (isObject(other) && other.quant_method === undefined) return parseQuantization(other, configPath, 'quantization_config');
    const method = isObject(other) ? other.quant_method : other;
    throw new TidemarkError(
      'MODEL_QUANTIZATION_UNSUPPORTED',
      `${configPath}: quantization method ${JSON.stringify(method)} is not supported. Convert the model to MLX's affine quantization (mlx_lm.convert -q).`,
      { details: { path: configPath, method } },
    );
  }
  if (!isObject(mlx)) throw new ConfigReader(config, configPath).error('quantization', 'an object', mlx);
  return parseQuantization(mlx, configPath, 'quantization');
}

function parseQuantization(section: JsonObject, path: string, prefix: string): Quantization {
  const overrides = new Map<string, QuantizationSpec | false>();
  const base = parseSpec(new ConfigReader(section, path, prefix), null);
  for (const [layer, value] of Object.entries(section)) {
    if (value === false) overrides.set(layer, false);
    else if (isObject(value)) overrides.set(layer, parseSpec(new ConfigReader(value, path, `${prefix}.${layer}`), base));
  }
  return { default: base, overrides };
}

function parseSpec(reader: ConfigReader, base: QuantizationSpec | null): QuantizationSpec {
  // An exception that names no mode is affine, whatever the default is.
  const mode = (reader.raw('mode') ?? 'affine') as QuantizationMode;
  if (BITS[mode] === undefined) {
    const error = reader.error('mode', `one of ${Object.keys(BITS).join(', ')}`, mode);
    throw new TidemarkError('MODEL_QUANTIZATION_UNSUPPORTED', `${error.message} Convert the model with affine quantization (mlx_lm.convert -q).`, {
      details: error.details,
    });
  }
  const bits = reader.int('bits', {}, base?.bits);
  if (!BITS[mode].includes(bits)) throw reader.error('bits', `one of ${BITS[mode].join(', ')} with mode ${mode}`, bits);
  const groupSize = reader.int('group_size', {}, base?.groupSize);
  if (!GROUP_SIZES[mode].includes(groupSize)) throw reader.error('group_size', `one of ${GROUP_SIZES[mode].join(', ')} with mode ${mode}`, groupSize);
  return { bits, groupSize, mode };
}
