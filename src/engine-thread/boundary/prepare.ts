/**
 * What happens to captured layers before they are laid out as a file: their own offsets are compared with the boundary,
 * append-only state is cut down to the block's rows, composite layers without state become placeholders, recurrent state
 * is set to be encoded. In that order, and without copying a byte.
 */
import { TidemarkError } from '../../shared/errors.ts';
import { isTensorBytes, type LayerState, type StateElement } from '../../shared/layer-state.ts';
import { type Compaction, compactPools } from './compaction.ts';
import type { StateEncoder } from './state-codec/encode.ts';

export interface StatePipeline {
  readonly encoder: StateEncoder;
  /** A model family's own compaction, after the one of pools. */
  readonly compaction: Compaction | null;
}

/**
 * @param blockSize without it nothing is compacted: the state does not belong to a chain of blocks
 * @throws {TidemarkError} INVALID_ARGUMENT (details.reason 'offset') when a layer, or a part of one, stands at another token
 */
export function prepareState(layers: readonly LayerState[], tokenCount: number, blockSize: number | undefined, pipeline: StatePipeline): readonly LayerState[] {
  for (const [index, layer] of layers.entries()) requireOffset(layer, index, tokenCount);
  return pipeline.encoder.encode(compact(layers, tokenCount, blockSize, pipeline.compaction).map(blankWithoutState));
}

function compact(layers: readonly LayerState[], tokenCount: number, blockSize: number | undefined, family: Compaction | null): readonly LayerState[] {
  if (blockSize === undefined) return layers;
  const point = { tokenCount, blockSize };
  const compacted = compactPools(layers, point);
  return family === null ? compacted : family(compacted, point);
}

/** State under a wrong token count would be restored as something it is not. Only a part of a composite layer may know its offset. */
function requireOffset(layer: LayerState, index: number, tokenCount: number): void {
  for (const { className, offset } of [layer, ...(layer.parts ?? [])]) {
    if (offset === undefined || offset === tokenCount) continue;
    throw new TidemarkError('INVALID_ARGUMENT', `Layer ${index} (${className}) has seen ${offset} tokens, the boundary is at ${tokenCount}.`, {
      details: { reason: 'offset', className, expected: tokenCount, received: offset },
    });
  }
}

/** A composite layer that holds no tensor anywhere is marked as having no state. */
function blankWithoutState(layer: LayerState): LayerState {
  const { className, elements } = layer;
  if (!elements.some(Array.isArray) || elements.some(hasTensor)) return layer;
  return { className, stored: 'none', meta: [], elements: [] };
}

function hasTensor(element: StateElement): boolean {
  if (Array.isArray(element)) return element.some(hasTensor);
  return element !== null && isTensorBytes(element);
}
