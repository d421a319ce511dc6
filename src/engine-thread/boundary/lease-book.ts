/**
 * The leases that this engine has given: which arrays are held for which item, until when.
 *
 * Engine thread only, and only it drops arrays. `reap` runs at each step and looks at shared words alone, so that nothing depends on a
 * message: a lease whose item is filled, has ended, or is another one by now is dropped.
 */
import type { CopyPlan } from '../../shared/blocks/copy-plan.ts';
import { isTensorBytes, type LayerState } from '../../shared/layer-state.ts';
import type { ItemRef } from '../../shared/session/item-space.ts';
import { FLAG, ITEM, STATE } from '../../shared/session/item-table.ts';
import { fillLeased } from '../../shared/session/leases.ts';
import type { Session } from '../../shared/session/session.ts';

/** The native calls; their threads' rules are in native/mlx/leases.cc. */
export interface NativeLeases {
  open(pieces: Float64Array, target: Uint8Array): number;
  drop(lease: number): void;
}

/** Finished sequences whose rows may be leased at the same time: a lease holds their whole buffers, of which only the rows are counted as pending. */
const MOST_PINNED = 2;

/** Layers whose updates make new arrays and leave the ones before alone. */
const REPLACED = new Set(['ArraysCache']);

/**
 * Whether these layers may be leased: `finished` says that nothing is written to their sequence any more. Of a living one, only state that every
 * token replaces: into a ring or a pool the next token is written in place, and with the buffer held that would copy all of it.
 */
export function mayLease(layers: readonly LayerState[], finished: boolean): boolean {
  return finished || layers.every(({ className, stored }) => stored === 'none' || REPLACED.has(className));
}

/** Bytes of what the layers hold, as far as it is tensors side by side. */
export function tensorBytesOf(layers: readonly LayerState[]): number {
  let sum = 0;
  for (const { elements } of layers) for (const element of elements) if (element !== null && isTensorBytes(element)) sum += element.byteLength;
  return sum;
}

interface Given {
  readonly lease: number;
  readonly session: Session;
  readonly ref: ItemRef;
  /** The finished sequence whose rows are leased; null for a state. */
  readonly rowsOf: number | null;
}

export class LeaseBook {
  readonly #native: NativeLeases;
  #given: Given[] = [];
  /** Leases given so far. */
  total = 0;

  constructor(native: NativeLeases) {
    this.#native = native;
  }

  get count(): number {
    return this.#given.length;
  }

  /** Whether rows of this finished sequence may be leased: with a disk that stands still, buffers of many would stay in memory. */
  mayPin(sequence: number): boolean {
    const others = new Set(this.#given.flatMap(({ rowsOf }) => (rowsOf === null || rowsOf === sequence ? [] : [rowsOf])));
    return others.size < MOST_PINNED;
  }

  /**
   * Leases what `plan` would copy, in place of running it. Everything in it is evaluated and will not be written in place. The item is
   * the caller's and not handed over yet. False when something in the plan is not an array's bytes, or its target is not the arena, which is
   * where leases are copied to: run it then.
   */
  give(session: Session, ref: ItemRef, plan: CopyPlan, rowsOf: number | null): boolean {
    if (session.items.has(ref.item, FLAG.oversize)) return false;
    const lease = plan.lease((pieces, target) => this.#native.open(pieces, target));
    if (lease === null) return false;
    this.#given.push({ lease, session, ref, rowsOf });
    this.total++;
    session.items.set(ref.item, ITEM.lease, lease);
    return true;
  }

  /** Drops what nobody reads any more. */
  reap(): void {
    if (this.#given.length === 0) return;
    this.#given = this.#given.filter((given) => {
      if (isNeeded(given)) return true;
      this.#native.drop(given.lease);
      return false;
    });
  }

  /** Copies what is still to be copied by this thread itself, and drops everything: the engine is about to end. @throws the first failure, at the end */
  settle(): void {
    let failure: unknown = null;
    for (const given of this.#given) {
      try {
        if (isNeeded(given)) fillLeased(given.session, given.ref);
      } catch (error) {
        failure ??= error;
      }
    }
    for (const { lease } of this.#given.splice(0)) this.#native.drop(lease);
    if (failure !== null) throw failure;
  }
}

function isNeeded({ lease, session, ref }: Given): boolean {
  const { items } = session;
  if (session.state === 'failed' || !items.is(ref.item, ref.generation)) return false;
  return items.get(ref.item, ITEM.lease) === lease && items.get(ref.item, ITEM.state) !== STATE.spent;
}
