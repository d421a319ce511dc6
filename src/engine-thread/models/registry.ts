/** Model families by the `model_type` of config.json. A new family is one entry and its file. */
import { TidemarkError } from '../../shared/errors.ts';
import { type ModelFolder, openModelFolder } from './config.ts';
import { loadDeepseekV3, loadDeepseekV32 } from './families/deepseek.ts';
import { loadDeepseekV41 } from './families/deepseek-v41.ts';
import { loadFalconH1 } from './families/falcon-h1.ts';
import { loadGemma3 } from './families/gemma3.ts';
import { loadGptOss } from './families/gpt-oss.ts';
import { loadLlama, loadQwen2, loadQwen3 } from './families/llama.ts';
import { loadLlama4 } from './families/llama4.ts';
import { loadMamba2 } from './families/mamba2.ts';
import { loadMixtral, loadQwen3Moe } from './families/moe.ts';
import { loadQwen3Next, loadQwen35 } from './families/qwen3-5.ts';
import type { CausalModel, LoadOptions } from './model.ts';

type Load = (folder: ModelFolder, options: LoadOptions) => CausalModel;

const FAMILIES: ReadonlyMap<string, Load> = new Map([
  ['llama', loadLlama],
  ['mistral', loadLlama],
  ['qwen2', loadQwen2],
  ['qwen3', loadQwen3],
  ['qwen3_moe', loadQwen3Moe],
  ['mixtral', loadMixtral],
  ['gemma3', loadGemma3],
  ['gemma3_text', loadGemma3],
  ['gpt_oss', loadGptOss],
  ['llama4', loadLlama4],
  ['mamba2', loadMamba2],
  ['falcon_h1', loadFalconH1],
  ['qwen3_next', loadQwen3Next],
  ['deepseek_v3', loadDeepseekV3],
  ['kimi_k2', loadDeepseekV3],
  ['deepseek_v32', loadDeepseekV32],
  ['deepseek_v41', loadDeepseekV41],
  ['deepseek_v41_text', loadDeepseekV41],
  ['qwen3_5', loadQwen35],
  ['qwen3_5_text', loadQwen35],
]);

export const SUPPORTED_MODEL_TYPES: readonly string[] = [...FAMILIES.keys()];

/**
 * Loads a model folder. Everything is checked before any tensor is read; when loading fails, nothing stays allocated.
 *
 * @throws {TidemarkError} MODEL_NOT_FOUND, MODEL_CONFIG_INVALID, MODEL_TYPE_UNSUPPORTED, MODEL_QUANTIZATION_UNSUPPORTED,
 *   MODEL_TENSOR_MISSING, MODEL_TENSOR_SHAPE, MODEL_FILE_TRUNCATED, MODEL_FILE_INVALID, MODEL_FILE_UNREADABLE
 */
export function loadModel(dir: string, options: LoadOptions): CausalModel {
  const folder = openModelFolder(dir);
  const load = FAMILIES.get(folder.modelType);
  if (load !== undefined) return load(folder, options);
  const supported = SUPPORTED_MODEL_TYPES.join(', ');
  throw new TidemarkError(
    'MODEL_TYPE_UNSUPPORTED',
    `${folder.configPath}: model_type ${JSON.stringify(folder.modelType)} is not supported. Supported are: ${supported}.`,
    {
      details: { path: folder.configPath, modelType: folder.modelType, supported: [...SUPPORTED_MODEL_TYPES] },
    },
  );
}
