/**
 * Handing a block to the store worker, on the engine thread. Copies bytes, never waits for the disk or for a lock that is
 * held for longer than microseconds.
 */
import type { CopyPlan } from '../../shared/blocks/copy-plan.ts';
import { type ImageLayout, layoutImage } from '../../shared/blocks/image.ts';
import type { DropReason } from '../../shared/errors.ts';
import type { LayerState } from '../../shared/layer-state.ts';
import { type PlacedUnit, placeUnit, type Reservation, requestKey, type Session, submitUnit, type UnitSpec } from '../../shared/session/index.ts';

export interface BlockUnit {
  readonly requestNo: number;
  readonly requestId: string;
  /** End of the block, in tokens from the start of the sequence. */
  readonly tokenCount: number;
  /** Hash of the block and of the one before it ('' for the first), from `ChainHasher`. */
  readonly hash: string;
  readonly parent: string;
  /** The block's own tokens. */
  readonly tokens: Uint32Array;
  readonly blockSize: number;
  readonly fingerprint: string;
  /**
   * One entry for each layer of the model: this block's slice of every layer that can be cut by token, and a placeholder
   * (`stored: 'none'`) for every layer whose state is captured whole. From the placeholders the store knows that a restore
   * at this block needs a state part.
   */
  readonly kv: readonly LayerState[];
  /** The block's state was saved before under (requestId, tokenCount). */
  readonly hasState: boolean;
}

/** Bytes that `publishBlock` will need for this unit: reserve them before, where waiting is possible. */
export function unitBytes(unit: BlockUnit): number {
  return layoutOf(unit).totalBytes;
}

/** One layout per unit: `unitBytes` and `publishBlock` ask for the same. */
const layouts = new WeakMap<BlockUnit, ImageLayout>();

function layoutOf(unit: BlockUnit): ImageLayout {
  let layout = layouts.get(unit);
  if (layout === undefined) {
    layout = layoutUnit(unit);
    layouts.set(unit, layout);
  }
  return layout;
}

function layoutUnit(unit: BlockUnit): ImageLayout {
  return layoutImage({
    part: 'kv',
    blockHash: unit.hash,
    parentHash: unit.parent,
    start: unit.tokenCount - unit.tokens.length,
    end: unit.tokenCount,
    blockSize: unit.blockSize,
    tokens: unit.tokens,
    fingerprint: unit.fingerprint,
    layers: unit.kv,
  });
}

/** Units of this session that are queued or being stored. No lock; a moment's figure. */
export function unitsInFlight(session: Session): number {
  const { items, layout } = session;
  let count = 0;
  for (let item = layout.firstUnit; item < layout.itemCount; item += 1) if (items.isAccepted(item)) count += 1;
  return count;
}

/**
 * Queues the block for the store worker, which publishes it together with its staged state. The tensors may be dropped when
 * this returns. Without a state part the unit is its own boundary and is counted in the ledger here.
 */
export function publishBlock(session: Session, unit: BlockUnit, reservation: Reservation | null = null): 'queued' | DropReason {
  const spec = specOf(unit);
  return spec === null ? 'invalid' : counted(session, unit, () => submitUnit(session, spec, reservation));
}

/**
 * As `publishBlock`, in two steps: takes the place and notes the copies in `plan` before the tensors are computed. `queue` hands
 * it over once the plan has run; the caller then rings `storeBell`. Null when there is no room at once.
 */
export function placeBlock(session: Session, unit: BlockUnit, plan: CopyPlan): PlacedUnit | null {
  const spec = specOf(unit);
  const place = spec === null ? 'invalid' : placeUnit(session, spec, null, plan);
  if (typeof place === 'string') return null;
  // With a state part it is the state that is counted.
  if (unit.hasState) return place;
  const queue = (): 'queued' | DropReason => counted(session, unit, () => place.queue());
  return { plan, ref: place.ref, queue, queueUnderPending: () => place.queueUnderPending(), release: () => place.release() };
}

function specOf(unit: BlockUnit): UnitSpec | null {
  const key = requestKey(unit.requestId);
  const { requestNo, tokenCount, hash, hasState } = unit;
  return key === null ? null : { key, requestNo, tokenCount, block: hash, hasState, image: layoutOf(unit) };
}

function counted(session: Session, unit: BlockUnit, hand: () => 'queued' | DropReason): 'queued' | DropReason {
  const isBoundary = !unit.kv.some((layer) => layer.stored === 'none');
  if (isBoundary) session.ledger.capture();
  let outcome: 'queued' | DropReason = 'poisoned';
  try {
    outcome = hand();
    return outcome;
  } finally {
    if (isBoundary && outcome !== 'queued') session.ledger.move('pending', `dropped:${outcome}`);
  }
}
