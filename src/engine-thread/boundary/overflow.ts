/**
 * The two ways of writing while the saver waits. The item is published, in the express slot, outside queue and cap.
 *
 * write-through: the writer takes it next. One compare-and-swap on the item's DECISION settles who ends it: the saver whose
 * limit passed (`waiting → abandoned`; the writer then removes its temporary file) or the writer (`waiting → publishing`, right
 * before its rename). inline: the engine thread writes it itself under `writerBusy`, testing the limit between system calls.
 *
 * An awaited item keeps its record until the saver has read RESULT; a saver that leaves first clears the flag, and then the
 * writer frees the record.
 */
import type { Files } from '../../shared/files.ts';
import type { ItemRef } from '../../shared/session/item-space.ts';
import { DECISION, FLAG, ITEM, RESULT, STATE } from '../../shared/session/item-table.ts';
import { withdraw } from '../../shared/session/publication.ts';
import type { Session } from '../../shared/session/session.ts';
import { now } from '../../shared/sync/clock.ts';
import { writeItem } from '../../snapshot-writer/write-item.ts';
import type { SaveResult } from './save.ts';

export function writeThrough(session: Session, ref: ItemRef): SaveResult {
  const { limits } = session;
  const begin = now();
  try {
    if (waitForResult(session, ref, limits.inlineWriteLimitMs)) return collect(session, ref);
    // Publishing already: the rename is one call, so its end is worth a moment.
    if (!abandon(session, ref)) waitForResult(session, ref, limits.publishGraceMs);
    return collect(session, ref);
  } finally {
    session.pending.addBackpressure(now() - begin);
  }
}

export function writeInline(session: Session, ref: ItemRef, files: Files): SaveResult {
  const { writerBusy } = session.locks;
  const begin = now();
  const limit = session.limits.inlineWriteLimitMs;
  try {
    if (!writerBusy.acquire(limit, 'save.inline')) {
      abandon(session, ref);
      return collect(session, ref);
    }
    try {
      writeItem(session, ref, files, begin + limit);
    } finally {
      writerBusy.release();
    }
    return collect(session, ref);
  } finally {
    session.pending.addBackpressure(now() - begin);
  }
}

function waitForResult(session: Session, ref: ItemRef, timeoutMs: number): boolean {
  const { items, pendingCond } = session;
  const ended = () => items.get(ref.item, ITEM.result) !== RESULT.none;
  return session.underPending('save.writeThrough', () => {
    pendingCond.waitUntil(() => ended() || session.state === 'failed' || !session.writerIsAlive, timeoutMs, 'write-through');
    return ended();
  });
}

/** Takes the item back unless the writer is publishing it. */
function abandon(session: Session, ref: ItemRef): boolean {
  const { items } = session;
  return session.settleAll('abandon', () => {
    if (items.get(ref.item, ITEM.visible) !== 1) return true;
    if (!items.decide(ref.item, DECISION.abandoned)) return false;
    withdraw(session, ref.item, DECISION.abandoned, 'backpressure');
    return true;
  });
}

/** Reads how it ended and lets go of the record. */
function collect(session: Session, ref: ItemRef): SaveResult {
  const { items, space } = session;
  return session.settlePending('save.collect', () => {
    const result = items.get(ref.item, ITEM.result);
    const errno = session.self.table.strings.read(items.get(ref.item, ITEM.errno));
    const cancelled = items.isCancelled(ref.item);
    if (items.get(ref.item, ITEM.state) === STATE.spent) space.free(ref.item);
    else items.clear(ref.item, FLAG.awaited);
    if (result === RESULT.written) return { ok: true, how: 'written' };
    if (result === RESULT.failed) return { ok: false, reason: 'failed', detail: errno };
    if (cancelled) return { ok: false, reason: 'cancelled', detail: 'the request was cleaned up' };
    return { ok: false, reason: 'backpressure', detail: `not written within ${session.limits.inlineWriteLimitMs} ms` };
  });
}
