export { restoreCaches, type StoredParts } from '../cache/restore.ts';
export { openModelFolder } from './config.ts';
export type { CausalModel, Compute, LoadOptions, LogitsOf, ModelInfo } from './model.ts';
export { loadModel, SUPPORTED_MODEL_TYPES } from './registry.ts';
