/** The cache classes by the name they are stored under, and what is done with a model's layers together. */
import { TidemarkError } from '../../shared/errors.ts';
import type { Stream, Tensor } from '../mlx/types.ts';
import { ArraysCache } from './arrays-cache.ts';
import { COMPRESSED_CLASS, CompressedCache } from './compressed-cache.ts';
import { KvCache } from './kv-cache.ts';
import { type LayerCache, offsetError, PendingCapture, type RowOf } from './layer-cache.ts';
import { RotatingKvCache } from './rotating-cache.ts';

export interface CacheClass {
  readonly className: string;
  readonly sliceable: boolean;
  /** Rows of one or several caches of this class as one batch, evaluated. The sources are unchanged. */
  gather(rows: readonly RowOf<LayerCache>[], s: Stream): LayerCache;
}

export const CACHE_CLASSES: ReadonlyMap<string, CacheClass> = new Map(
  [
    { className: 'KVCache', sliceable: true, gather: (rows: readonly RowOf<LayerCache>[], s: Stream) => KvCache.gather(rows as RowOf<KvCache>[], s) },
    { className: 'ChunkedKVCache', sliceable: true, gather: (rows: readonly RowOf<LayerCache>[], s: Stream) => KvCache.gather(rows as RowOf<KvCache>[], s) },
    {
      className: 'RotatingKVCache',
      sliceable: false,
      gather: (rows: readonly RowOf<LayerCache>[], s: Stream) => RotatingKvCache.gather(rows as RowOf<RotatingKvCache>[], s),
    },
    {
      className: COMPRESSED_CLASS,
      sliceable: false,
      gather: (rows: readonly RowOf<LayerCache>[], s: Stream) => CompressedCache.gather(rows as RowOf<CompressedCache>[], s),
    },
    {
      className: 'ArraysCache',
      sliceable: false,
      gather: (rows: readonly RowOf<LayerCache>[], s: Stream) => ArraysCache.gather(rows as RowOf<ArraysCache>[], s),
    },
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
  const rows = sequences.flatMap((caches) => Array.from({ length: caches[0]!.rows }, (_, row) => ({ caches, row })));
  return gatherRows(rows, s);
}

/** Rows of sequences and batches as one batch, layer by layer. The sources are unchanged and still to be released. */
export function gatherRows(rows: readonly { readonly caches: readonly LayerCache[]; readonly row: number }[], s: Stream): LayerCache[] {
  const gathered: LayerCache[] = [];
  try {
    for (const [layer, first] of rows[0]!.caches.entries()) {
      const sources = rows.map(({ caches, row }) => ({ cache: caches[layer]!, row }));
      const kind = CACHE_CLASSES.get(first.className);
      if (kind === undefined || sources.some(({ cache }) => cache.className !== first.className)) {
        const classes = sources.map(({ cache }) => cache.className).join(', ');
        throw new TidemarkError('INVALID_ARGUMENT', `Layer ${layer}: caches of class ${classes} cannot be merged.`, { details: { layer } });
      }
      gathered.push(kind.gather(sources, s));
    }
    return gathered;
  } catch (error) {
    releaseCaches(gathered);
    throw error;
  }
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
