/**
 * Block images on their way to the store worker: the same items, arena and accounting as state, but another ring.
 *
 * Engine thread: `submitUnit` copies the image in and queues it. It never waits: the engine asks for room first if it wants to
 * (`reserveUnit`). It is the only thread that queues units of its session, so a free place stays free until it comes back.
 * Store worker: `takeUnit`, publish, `finishUnit` in a `finally`; that gives the bytes back and, when the request has ended
 * meanwhile, cleans the staged file that the unit had claimed. A unit may be kept (set aside) between the two.
 */
import { CopyPlan } from '../blocks/copy-plan.ts';
import type { ImageLayout } from '../blocks/image.ts';
import type { PagedBytes } from '../blocks/paged-bytes.ts';
import type { DropReason } from '../errors.ts';
import { now } from '../sync/clock.ts';
import { forget } from './cleanup.ts';
import type { ItemRef, Refusal } from './item-space.ts';
import { FLAG, ITEM, KIND, STATE } from './item-table.ts';
import type { Reservation } from './pending.ts';
import { keyFromBytes, type RequestKey } from './request-key.ts';
import type { Session } from './session.ts';

export interface UnitSpec {
  readonly key: RequestKey;
  readonly requestNo: number;
  /** End of the block: the boundary this unit belongs to. */
  readonly tokenCount: number;
  /** Hash of the block, 64 hex digits. */
  readonly block: string;
  /** Whether the block's state lies in the staged file of (key, tokenCount), written or on its way. Save it before. */
  readonly hasState: boolean;
  readonly image: ImageLayout;
}

export interface Unit extends ItemRef {
  readonly key: RequestKey;
  readonly requestNo: number;
  readonly tokenCount: number;
  readonly block: string;
  readonly hasState: boolean;
}

/** Bytes and a place among the units, waiting up to `waitMs` for both together; null when there is none by then. */
export function reserveUnit(session: Session, bytes: number, waitMs: number): Reservation | null {
  const { items, layout, pending } = session;
  const until = now() + waitMs;
  const hasPlace = (): boolean => {
    for (let item = layout.firstUnit; item < layout.itemCount; item += 1) if (items.get(item, ITEM.state) === STATE.free) return true;
    return false;
  };
  const place = session.guarded(
    () => session.underPending('reserveUnit', () => pending.waitFor(hasPlace, waitMs)),
    () => false,
  );
  return place ? pending.reserve(bytes, Math.max(0, until - now())) : null;
}

/** Queues the unit, or says why not. The image's sources are copied when this returns; the reservation is used up or released. */
export function submitUnit(session: Session, spec: UnitSpec, reservation: Reservation | null = null): 'queued' | DropReason {
  try {
    const place = placeUnit(session, spec, reservation);
    if (typeof place === 'string') return place;
    try {
      place.plan.run();
    } catch (error) {
      place.release();
      throw error;
    }
    const outcome = place.queue();
    if (outcome === 'queued') session.storeBell.ring();
    else place.release();
    return outcome;
  } finally {
    reservation?.release();
  }
}

/** A unit with its place and its bytes, not queued yet. Ends with `queue` or `release`; a second one does nothing. */
export interface PlacedUnit {
  /** Run it before `queue`. */
  readonly plan: CopyPlan;
  /** The item, until it is handed over or released. */
  readonly ref: ItemRef;
  /** Hands the unit over; the caller rings `storeBell`. */
  queue(): 'queued' | DropReason;
  /** The same for a caller that holds `pending`. */
  queueUnderPending(): 'queued' | DropReason;
  /** Gives everything back. */
  release(): void;
}

/** Takes a place and the bytes, and notes the copies in `plan`: the image's sources need not be there yet. Never waits for room. */
export function placeUnit(session: Session, spec: UnitSpec, reservation: Reservation | null = null, plan = new CopyPlan()): PlacedUnit | DropReason {
  return session.guarded<PlacedUnit | DropReason>(
    () => {
      if (session.state !== 'open') return 'closed';
      const admitted = session.underPending('placeUnit', () => admit(session, spec, reservation));
      if (typeof admitted === 'string') return admitted === 'oversize' ? 'oversize' : 'backpressure';
      const placed = new Placed(session, admitted, plan);
      try {
        plan.add(spec.image, session.space.bytesOf(admitted.item)!);
        // A buffer of its own travels by message; the store worker waits for whichever comes later.
        session.oversize.hand(admitted.item, admitted.generation, 'store');
      } catch (error) {
        placed.release();
        throw error;
      }
      return placed;
    },
    () => 'lock',
  );
}

/** `pending` is held. */
function admit({ items, space }: Session, spec: UnitSpec, reservation: Reservation | null): ItemRef | Refusal {
  const place = space.admit(KIND.unit, spec.image.totalBytes, reservation);
  if (typeof place === 'string') return place;
  items.setKey(place.item, spec.key);
  items.setBlock(place.item, keyFromBytes(Buffer.from(spec.block, 'hex')));
  items.set(place.item, ITEM.tokenCount, spec.tokenCount);
  items.set(place.item, ITEM.requestNo, spec.requestNo);
  if (spec.hasState) items.raise(place.item, FLAG.hasState);
  return place;
}

class Placed implements PlacedUnit {
  readonly plan: CopyPlan;
  readonly ref: ItemRef;
  readonly #session: Session;
  #ref: ItemRef | null;

  constructor(session: Session, ref: ItemRef, plan: CopyPlan) {
    this.#session = session;
    this.ref = ref;
    this.#ref = ref;
    this.plan = plan;
  }

  queue(): 'queued' | DropReason {
    const session = this.#session;
    return session.guarded<'queued' | DropReason>(
      () => session.underPending('queueUnit', () => this.queueUnderPending()),
      () => 'lock',
    );
  }

  queueUnderPending(): 'queued' | DropReason {
    const session = this.#session;
    const ref = this.#ref;
    if (ref === null) return 'invalid';
    // What was taken goes back with `release`.
    if (session.state !== 'open') return 'closed';
    this.#ref = null;
    session.items.set(ref.item, ITEM.state, STATE.queued);
    session.unitRing.push(ref.item, ref.generation);
    return 'queued';
  }

  release(): void {
    const session = this.#session;
    const ref = this.#ref;
    this.#ref = null;
    if (ref !== null)
      session.guarded<void>(
        () => finishUnit(session, ref),
        () => undefined,
      );
  }
}

/** Store worker: the next unit, or null. */
export function takeUnit(session: Session): Unit | null {
  const { items } = session;
  for (;;) {
    const descriptor = session.unitRing.pop();
    if (descriptor === null) return null;
    const [item, generation] = descriptor;
    if (!items.is(item, generation)) continue;
    items.set(item, ITEM.state, STATE.taken);
    return {
      item,
      generation,
      key: items.keyOf(item),
      requestNo: items.get(item, ITEM.requestNo),
      tokenCount: items.get(item, ITEM.tokenCount),
      block: Buffer.from(items.blockOf(item).buffer).toString('hex'),
      hasState: items.has(item, FLAG.hasState),
    };
  }
}

/** The unit's image, checksums not filled in. Null while an oversize buffer has not arrived: set the unit aside. */
export function unitBytes(session: Session, unit: ItemRef): PagedBytes | null {
  return session.space.bytesOf(unit.item);
}

/** The unit is done, well or badly; once. Its bytes and its place are free. */
export function finishUnit(session: Session, unit: ItemRef): void {
  const { items, space } = session;
  const claimed = session.settlePending('finishUnit', () => {
    if (!items.is(unit.item, unit.generation)) return null;
    const orphan = items.has(unit.item, FLAG.requestEnded) ? { key: items.keyOf(unit.item), tokenCount: items.get(unit.item, ITEM.tokenCount) } : null;
    space.dropBytes(unit.item);
    space.free(unit.item);
    return orphan;
  });
  if (claimed !== null) forget(session, claimed.key, claimed.tokenCount);
}
