export { type ArraySpec, ArraysCache } from './arrays-cache.ts';
export { KV_STEP, KvCache, type KvShape } from './kv-cache.ts';
export { type LayerCache, PendingCapture, storedDtype } from './layer-cache.ts';
export {
  CACHE_CLASSES,
  type CacheClass,
  cacheBytes,
  cacheTensors,
  captureKv,
  captureState,
  cloneCaches,
  extractRow,
  gatherRows,
  mergeCaches,
  releaseCaches,
  requireOffsets,
} from './registry.ts';
export { restoreCaches, type StoredParts } from './restore.ts';
export { RotatingKvCache, type RotatingShape } from './rotating-cache.ts';
