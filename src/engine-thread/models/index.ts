export {
  type CacheClass,
  cacheBytes,
  cacheTensors,
  captureKv,
  captureState,
  cloneCaches,
  extractRow,
  type LayerCache,
  mergeCaches,
  PendingCapture,
  releaseCaches,
  requireOffsets,
  restoreCaches,
  type StoredParts,
} from '../cache/index.ts';
export { type ModelFolder, openModelFolder } from './config.ts';
export { type FingerprintOptions, modelFingerprint } from './fingerprint.ts';
export type { CausalModel, Compute, LoadOptions, LogitsOf, ModelInfo } from './model.ts';
export { loadModel, SUPPORTED_MODEL_TYPES } from './registry.ts';
