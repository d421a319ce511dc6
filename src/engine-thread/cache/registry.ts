/** The cache classes by the name they are stored under, and what is done with a model's layers together. */
import { TidemarkError } from '../../shared/errors.ts';
import type { Stream, Tensor } from '../mlx/types.ts';
import { ArraysCache } from './arrays-cache.ts';
import { KvCache } from './kv-cache.ts';
import { type LayerCache, offsetError, PendingCapture } from './layer-cache.ts';

export interface CacheClass {
  readonly className: string;
  readonly sliceable: boolean;
  /** Rows of several caches of this class as one batch, evaluated. The sources are unchanged. */
  merge(caches: readonly LayerCache[], s: Stream): LayerCache;
}

export const CACHE_CLASSES: ReadonlyMap<string, CacheClass> = new Map(
  [
    { className: 'KVCache', sliceable: true, merge: (caches: readonly LayerCache[], s: Stream) => KvCache.merge(caches as KvCache[], s) },
    { className: 'ArraysCache', sliceable: false, merge: (caches: readonly LayerCache[], s: Stream) => ArraysCache.merge(caches as ArraysCache[], s) },
  ].map((entry) => [entry.className, entry]),
);

/** Everything that must be evaluated after a step. */
export function cacheTensors(caches: readonly LayerCache[]): Tensor[] {
  return caches.flatMap((cache) => cache.tensors());
}

export function cacheBytes(caches: readonly LayerCache[]): number {
  return caches.reduce((sum, cache) => sum + cache.bytes(), 0);
}

export function releaseCaches(caches: readonly LayerCache[]): void {
  for (const cache of caches) cache.release();
}

/** An independent copy of a sequence's caches, evaluated: a fork. */
export function cloneCaches(caches: readonly LayerCache[], s: Stream): LayerCache[] {
  return caches.map((cache) => cache.clone(s));
}

/** Several sequences (or batches) as one batch, layer by layer. The sources are unchanged and still to be released. */
export function mergeCaches(sequences: readonly (readonly LayerCache[])[], s: Stream): LayerCache[] {
  return sequences[0]!.map((first, layer) => {
    const caches = sequences.map((sequence) => sequence[layer]!);
    const kind = CACHE_CLASSES.get(first.className);
    if (kind === undefined || caches.some((cache) => cache.className !== first.className)) {
      throw new TidemarkError('INVALID_ARGUMENT', `Layer ${layer}: caches of class ${caches.map((cache) => cache.className).join(', ')} cannot be merged.`, {
        details: { layer },
      });
    }
    return kind.merge(caches, s);
  });
}

/** One row of a batch as a sequence's own caches. */
export function extractRow(caches: readonly LayerCache[], row: number, s: Stream): LayerCache[] {
  return caches.map((cache) => cache.extractRow(row, s));
}

/** Throws unless every layer's own offset equals `tokenCount`: a state of layers at different places must never be stored. */
export function requireOffsets(caches: readonly LayerCache[], tokenCount: number): void {
  for (const cache of caches) if (cache.offset !== tokenCount) throw offsetError(cache.className, `exactly ${tokenCount}`, cache.offset);
}

/**
 * The `kv` part of a block, one entry per layer: slices of the sliceable layers, placeholders for the others.
 *
 * @returns null when the model has no sliceable layer
 */
export function captureKv(caches: readonly LayerCache[], from: number, to: number, s: Stream): PendingCapture[] | null {
  return capturePart(caches, true, from, to, s);
}

/**
 * The `state` part at `tokenCount`, one entry per layer: whole state, placeholders for sliceable layers.
 *
 * @returns null when the model has only sliceable layers
 */
export function captureState(caches: readonly LayerCache[], tokenCount: number, s: Stream): PendingCapture[] | null {
  requireOffsets(caches, tokenCount);
  return capturePart(caches, false, 0, tokenCount, s);
}

function capturePart(caches: readonly LayerCache[], sliceable: boolean, from: number, to: number, s: Stream): PendingCapture[] | null {
  if (!caches.some((cache) => cache.sliceable === sliceable)) return null;
  const done: PendingCapture[] = [];
  try {
    for (const cache of caches) done.push(cache.sliceable === sliceable ? cache.capture(from, to, s) : PendingCapture.placeholder(cache.className));
  } catch (error) {
    for (const capture of done) capture.release();
    throw error;
  }
  return done;
}
