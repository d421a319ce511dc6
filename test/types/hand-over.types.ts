/**
 * What crosses threads is bytes: an array of MLX, evaluated or not, is refused by the compiler wherever state is handed over. Read
 * by tsc only (`[I94]` in types.test.ts).
 */
import { type BlockUnit, publishBlock } from '../../dist/engine-thread/boundary/publish.js';
import type { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import type { PendingCapture } from '../../dist/engine-thread/cache/layer-cache.js';
import type { Tensor } from '../../dist/engine-thread/mlx/types.js';
import type { LayerState } from '../../dist/shared/layer-state.js';
import type { Session } from '../../dist/shared/session/session.js';

const layer = { className: 'ArraysCache', stored: 'whole', meta: [] } as const;

export function right(session: Session, store: BoundarySnapshotStore, unit: BlockUnit, capture: PendingCapture): LayerState {
  store.save('r', 16, [capture.toLayerState()]);
  publishBlock(session, { ...unit, kv: [capture.toLayerState()] });
  return { ...layer, elements: [1, null, [2]] };
}

export function wrong(session: Session, store: BoundarySnapshotStore, unit: BlockUnit, capture: PendingCapture, t: Tensor): void {
  // @ts-expect-error: an array is no layer
  store.save('r', 16, [t]);
  // @ts-expect-error: nor is a capture that was not evaluated
  store.save('r', 16, [capture]);
  // @ts-expect-error: nor is the array one of its elements
  store.save('r', 16, [{ ...layer, elements: [t] }]);
  // @ts-expect-error: also inside a nested state
  store.save('r', 16, [{ ...layer, elements: [[null, t]] }]);
  // @ts-expect-error: the same for blocks
  publishBlock(session, { ...unit, kv: [{ ...layer, elements: [t] }] });
}
