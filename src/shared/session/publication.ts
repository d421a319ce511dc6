/**
 * An item becomes the pending entry of its boundary, and how it stops being one.
 *
 * Everything here runs under `pending`, `registry` (and `cancelled`), taken in that order and held for microseconds, so that
 * no thread ever sees a boundary in neither the pending buffer nor the registry. Files are touched before or after, never in
 * between: `settle…` tells the caller what is left to remove.
 *
 * While an item is visible its boundary counts as `pending` in the ledger; whoever makes it invisible moves the ledger.
 */
import type { DropReason } from '../errors.ts';
import type { TimedMutex } from '../sync/mutex.ts';
import type { ItemRef } from './item-space.ts';
import { DECISION, FLAG, ITEM, RESULT, STATE } from './item-table.ts';
import { FILE_STATE, RECORD } from './registry.ts';
import type { RequestKey } from './request-key.ts';
import type { Session } from './session.ts';

export type Publication = 'published' | 'coalesced' | 'registry' | 'closed';

/**
 * Makes a filled item visible as the pending entry of (`key`, `tokenCount`), its own, and queues it. Anything but 'published'
 * has freed the item.
 *
 * `together` is for what is handed over with it: runs under `pending` when the boundary is (or was) published, and the caller
 * then rings `writerBell`. (The locks are taken without closures: the engine thread comes here once in a few hundred steps,
 * so the code is cold, and each function that it passes through costs a microsecond.)
 */
export function publishItem(
  session: Session,
  ref: ItemRef,
  { key, tokenCount }: { readonly key: RequestKey; readonly tokenCount: number },
  how: 'queue' | 'express' | 'inline',
  together: (() => void) | null = null,
): Publication {
  const { items, locks, limits } = session;
  let outcome: Publication;
  acquire(locks.pending, limits.lockWaitMs, 'publish');
  try {
    if (session.state !== 'open') outcome = 'closed';
    else if (items.findVisible(key, tokenCount) >= 0) outcome = 'coalesced';
    else {
      acquire(locks.registry, limits.lockWaitMs, 'publish');
      try {
        outcome = enterRegistry(session, key, tokenCount, ref);
      } finally {
        locks.registry.release();
      }
    }
    if (outcome !== 'published') {
      session.space.dropBytes(ref.item);
      session.space.free(ref.item);
    } else {
      items.set(ref.item, ITEM.visible, 1);
      items.set(ref.item, ITEM.state, STATE.queued);
      if (how === 'queue') session.writerRing.push(ref.item, ref.generation);
      else items.raise(ref.item, how === 'inline' ? FLAG.awaited | FLAG.inline : FLAG.awaited);
    }
    if (together !== null && (outcome === 'published' || outcome === 'coalesced')) together();
  } finally {
    locks.pending.release();
  }
  if (outcome === 'published' && how !== 'inline' && together === null) session.writerBell.ring();
  return outcome;
}

function acquire(lock: TimedMutex, timeoutMs: number, site: string): void {
  if (!lock.acquire(timeoutMs, site)) throw lock.timeoutError(timeoutMs, site);
}

/** One record per boundary: an earlier file of it is replaced by the rename, a condemned one needs no removal of its own any more. */
function enterRegistry(session: Session, key: RequestKey, tokenCount: number, ref: ItemRef): Publication {
  const { registry, ledger } = session;
  const index = registry.find(key, tokenCount);
  if (index < 0) return registry.insert(key, tokenCount, ref.generation, session.items.get(ref.item, ITEM.requestNo)) < 0 ? 'registry' : 'published';
  const state = registry.get(index, RECORD.state);
  // Somebody is taking the file of this very boundary: it is on its way into the block store already.
  if (state === FILE_STATE.detaching) return 'coalesced';
  if (state === FILE_STATE.file) ledger.move('written', 'superseded');
  if (state === FILE_STATE.condemned && registry.get(index, RECORD.removeFailed) === 0) session.addCondemned(-1);
  registry.set(index, RECORD.state, FILE_STATE.pending);
  registry.set(index, RECORD.generation, ref.generation);
  registry.set(index, RECORD.requestNo, session.items.get(ref.item, ITEM.requestNo));
  registry.set(index, RECORD.oldFile, 1);
  registry.set(index, RECORD.removeFailed, 0);
  return 'published';
}

/**
 * The consumer takes an item off its queue, or passes one that ended before. Only with `writerBusy`, so that whoever else
 * holds it finds no item in between.
 */
export function takeItem(session: Session, ref: ItemRef): boolean {
  const { items, space } = session;
  return session.settlePending('take', () => {
    if (!items.is(ref.item, ref.generation)) return false;
    const state = items.get(ref.item, ITEM.state);
    if (state === STATE.queued && items.get(ref.item, ITEM.decision) === DECISION.waiting) {
      items.set(ref.item, ITEM.state, STATE.taken);
      return true;
    }
    if (state === STATE.spent && !items.has(ref.item, FLAG.awaited)) space.free(ref.item);
    return false;
  });
}

/** After the rename: the boundary is written, unless a cleanup came first; then the caller removes the file and calls `settleGone`. */
export function settleWritten(session: Session, ref: ItemRef): 'written' | 'cancelled' {
  const { items, registry, ledger, pending } = session;
  return session.settleAll('written', () => {
    if (items.isCancelled(ref.item)) return 'cancelled';
    const index = recordOf(session, ref);
    if (index >= 0) {
      registry.set(index, RECORD.state, FILE_STATE.file);
      registry.set(index, RECORD.oldFile, 0);
    }
    ledger.move('pending', 'written');
    pending.countWritten(items.getBytes(ref.item, ITEM.byteLength));
    end(session, ref.item, RESULT.written);
    return 'written';
  });
}

/** The item has no file, temporary or final, any more. `why` counts if nobody has settled the boundary before. */
export function settleGone(session: Session, ref: ItemRef, why: { failed: string } | { dropped: DropReason }): 'failed' | 'dropped' | 'settled before' {
  const { items, registry, ledger } = session;
  return session.settleAll('gone', () => {
    const index = recordOf(session, ref);
    if (index >= 0) registry.remove(index);
    const settled = items.get(ref.item, ITEM.visible) === 0;
    const failed = 'failed' in why;
    if (!settled) ledger.move('pending', failed ? 'failed' : `dropped:${why.dropped}`);
    if (failed) items.set(ref.item, ITEM.errno, session.self.table.strings.intern(why.failed));
    end(session, ref.item, failed ? RESULT.failed : RESULT.dropped);
    return settled ? 'settled before' : failed ? 'failed' : 'dropped';
  });
}

/** The registry record that this item published, if it is still there. */
function recordOf(session: Session, ref: ItemRef): number {
  const { items, registry } = session;
  const index = registry.find(items.keyOf(ref.item), items.get(ref.item, ITEM.tokenCount));
  if (index < 0) return -1;
  return registry.get(index, RECORD.state) === FILE_STATE.pending && registry.get(index, RECORD.generation) === ref.generation ? index : -1;
}

/** The bytes go back first; an awaited item keeps its record until its saver has read the result. */
function end(session: Session, item: number, result: number): void {
  const { items, space } = session;
  items.set(item, ITEM.visible, 0);
  items.set(item, ITEM.result, result);
  items.set(item, ITEM.state, STATE.spent);
  space.dropBytes(item);
  if (!items.has(item, FLAG.awaited)) space.free(item);
}

/**
 * Makes a visible item invisible before its end: cancelled by a cleanup, or abandoned by its saver. All three locks are held.
 * Bytes of an item that nobody has taken go back at once; a taken one keeps them until its consumer lets go. An earlier file of
 * the boundary is condemned.
 */
export function withdraw(session: Session, item: number, decision: number, reason: DropReason): void {
  const { items, registry, ledger, space } = session;
  const ref = { item, generation: items.get(item, ITEM.generation) };
  items.decide(item, decision);
  if (decision === DECISION.cancelled) items.set(item, ITEM.cancelledGeneration, ref.generation);
  const index = recordOf(session, ref);
  if (index >= 0 && registry.get(index, RECORD.oldFile) === 1) condemn(session, index);
  else if (index >= 0) registry.remove(index);
  ledger.move('pending', `dropped:${reason}`);
  items.set(item, ITEM.visible, 0);
  if (items.get(item, ITEM.state) === STATE.queued) {
    items.set(item, ITEM.state, STATE.spent);
    items.set(item, ITEM.result, RESULT.dropped);
    space.dropBytes(item);
  }
}

/** `registry` is held: from now on nobody knows the file, and a holder of `writerBusy` removes it. */
export function condemn(session: Session, index: number): void {
  session.registry.set(index, RECORD.state, FILE_STATE.condemned);
  session.registry.set(index, RECORD.oldFile, 0);
  session.addCondemned(1);
}
