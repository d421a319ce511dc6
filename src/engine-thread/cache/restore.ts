/** Stored parts back to live caches, all or nothing. */
import { TidemarkError } from '../../shared/errors.ts';
import type { LayerState } from '../../shared/layer-state.ts';
import * as mx from '../mlx/ops.ts';
import { type LayerCache, restoreError } from './layer-cache.ts';
import { releaseCaches } from './registry.ts';

export interface StoredParts {
  /** Per block, in order: one entry per layer ('none' for layers whose state is whole). Empty for a model without sliceable layers. */
  readonly kv: readonly (readonly LayerState[])[];
  /** The state at the end of the last block, one entry per layer; null for a model without whole state. */
  readonly state: readonly LayerState[] | null;
}

/**
 * Makes caches that continue exactly as the writer's would have: same bytes, same buffer capacity.
 *
 * @param model only its `makeCaches` is used
 * @throws {TidemarkError} FORMAT_INVALID when the parts do not fit the model or each other; nothing is left allocated
 */
export function restoreCaches(model: { makeCaches(): LayerCache[] }, parts: StoredParts): LayerCache[] {
  const caches = model.makeCaches();
  try {
    const tokenCount = tokensOf(parts);
    for (const block of parts.kv) requireLayers(block, caches.length);
    if (parts.state !== null) requireLayers(parts.state, caches.length);
    const fill = (cache: LayerCache, layer: number) => {
      const stored = cache.sliceable ? parts.kv.map((block) => block[layer]!) : [parts.state?.[layer]].filter((part) => part !== undefined);
      if (stored.length === 0) throw restoreError(cache.className, 'it is missing');
      cache.restore(stored, tokenCount);
    };
    // The scope frees what a failing layer had begun; what a layer took over is released below.
    mx.scope(() => caches.forEach(fill));
    return caches;
  } catch (error) {
    releaseCaches(caches);
    throw error;
  }
}

/** The token count all layers must agree on: the end of the last slice, else what the whole state says. */
function tokensOf(parts: StoredParts): number {
  const end = parts.kv.at(-1)?.find((layer) => layer.range !== undefined)?.range?.[1];
  const count = end ?? parts.state?.find((layer) => layer.stored === 'whole')?.meta[0];
  if (typeof count === 'number' && Number.isSafeInteger(count) && count > 0) return count;
  throw new TidemarkError('FORMAT_INVALID', 'The stored parts do not say how many tokens they hold.', { details: { tokenCount: count ?? null } });
}

function requireLayers(part: readonly LayerState[], expected: number): void {
  if (part.length === expected) return;
  throw new TidemarkError('FORMAT_INVALID', `A stored part has ${part.length} layers, the model has ${expected}.`, {
    details: { expected, received: part.length },
  });
}
