/**
 * Taking a staged file away: the state that was written once becomes part of a block by a rename.
 *
 * Two-phase, because no file operation happens under a lock: the record is marked as being detached under `pending` and
 * `registry`, the file is renamed without them, and the record is removed under `registry`. Cleanup leaves records that are
 * being detached alone. Any thread but the engine's may wait here; the drain loop of the store worker passes no time and asks
 * again when the session's staged sequence has changed.
 */

import { dirname } from 'node:path';
import type { MissReason } from '../errors.ts';
import { errnoOf, type Files } from '../files.ts';
import { promotedPath, stagedPath } from '../staging.ts';
import { now } from '../sync/clock.ts';
import { removeFolderIfUnused } from './cleanup.ts';
import { condemn } from './publication.ts';
import { FILE_STATE, RECORD } from './registry.ts';
import type { RequestKey } from './request-key.ts';
import type { Session } from './session.ts';

export type StagedState = 'pending' | 'written' | 'absent';

export type Taken = { ok: true; path: string } | { ok: false; reason: MissReason; detail: string };

/** Whether the boundary's file is there, on its way, or neither (never saved, dropped, failed, cleaned, taken). */
export function stagedState(session: Session, key: RequestKey, tokenCount: number): StagedState {
  return session.underRegistry('stagedState', () => {
    const index = session.registry.find(key, tokenCount);
    const state = index < 0 ? FILE_STATE.none : session.registry.get(index, RECORD.state);
    return state === FILE_STATE.pending ? 'pending' : state === FILE_STATE.file ? 'written' : 'absent';
  });
}

/**
 * Renames the boundary's file to a new path that the caller owns; the store knows it no more. Waits up to `timeoutMs` while
 * it is still being written (0: not at all; the miss then has reason 'busy').
 */
export function takeStaged(session: Session, files: Files, key: RequestKey, tokenCount: number, timeoutMs: number): Taken {
  const record = detach(session, key, tokenCount, timeoutMs);
  if (typeof record === 'string') return { ok: false, reason: record, detail: record === 'busy' ? 'not written yet' : 'no such boundary' };
  const { registry, memory, ledger } = session;
  const from = stagedPath(memory.stagingDir, key, tokenCount);
  const to = promotedPath(dirname(memory.stagingDir), session.id, key, tokenCount, record.generation);
  const failure = moveOut(files, from, to);
  const condemned = session.settleRegistry('detached', () => {
    if (failure === null || failure === 'ENOENT') {
      registry.remove(record.index);
      if (failure === 'ENOENT') ledger.move('written', 'failed');
      return false;
    }
    // What lies there but is not ours to use stays known until it is cleaned; a cleanup that came meanwhile has passed it by.
    registry.set(record.index, RECORD.state, FILE_STATE.file);
    if (registry.get(record.index, RECORD.forgotten) === 0) return false;
    ledger.move('written', 'dropped:cancelled');
    condemn(session, record.index);
    return true;
  });
  if (condemned) session.writerBell.ring();
  if (failure !== null) return { ok: false, reason: failure === 'ENOENT' ? 'absent' : 'io', detail: `${failure} ${from}` };
  removeFolderIfUnused(session, files, key);
  return { ok: true, path: to };
}

/**
 * Records that a thread was detaching when it died: the file is either still in staging, and known again, or was renamed,
 * and then the record goes. For whoever takes over the dead thread's work.
 */
export function reviveDetaching(session: Session, files: Files): void {
  const { registry, memory } = session;
  const left = session.underRegistry('reviveDetaching', () =>
    registry
      .recordsOf(null)
      .filter((index) => registry.get(index, RECORD.state) === FILE_STATE.detaching && session.self.table.isDead(registry.get(index, RECORD.detacher)))
      .map((index) => registry.read(index)),
  );
  for (const record of left) {
    const there = files.kind(stagedPath(memory.stagingDir, record.key, record.tokenCount)) === 'file';
    session.underRegistry('revived', () => {
      if (there) registry.set(record.index, RECORD.state, FILE_STATE.file);
      else registry.remove(record.index);
    });
  }
}

/** Null when the file is at `to`; 'ENOENT' when there was none; another errno when it is still where it was. Never throws. */
function moveOut(files: Files, from: string, to: string): string | null {
  try {
    files.requireFolder(dirname(from));
    const kind = files.kind(from);
    if (kind !== 'file') return kind === 'missing' ? 'ENOENT' : 'ELOOP';
  } catch (error) {
    return errnoOf(error);
  }
  try {
    files.rename(from, to);
    return null;
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') return errnoOf(error);
  }
  try {
    // Somebody has removed the promotion folder.
    files.ensureFolder(dirname(to));
    files.rename(from, to);
    return null;
  } catch (error) {
    return errnoOf(error) === 'ENOENT' ? 'EIO' : errnoOf(error);
  }
}

function detach(session: Session, key: RequestKey, tokenCount: number, timeoutMs: number): { index: number; generation: number } | 'absent' | 'busy' {
  const { registry, pendingCond } = session;
  const end = now() + timeoutMs;
  return session.underPending('takeStagedFile', () => {
    for (;;) {
      const ticket = pendingCond.ticket();
      const found = session.underRegistry('detach', () => {
        const index = registry.find(key, tokenCount);
        const state = index < 0 ? FILE_STATE.none : registry.get(index, RECORD.state);
        if (state === FILE_STATE.pending) return 'busy';
        if (state !== FILE_STATE.file) return 'absent';
        registry.set(index, RECORD.state, FILE_STATE.detaching);
        registry.set(index, RECORD.detacher, session.self.token);
        registry.set(index, RECORD.forgotten, 0);
        return { index, generation: registry.get(index, RECORD.generation) };
      });
      if (found !== 'busy') return found;
      const left = end - now();
      // A failed session settles nothing any more; a closed one still writes what it accepted.
      if (left <= 0 || session.state === 'failed') return 'busy';
      pendingCond.wait(Math.min(left, 50), ticket, 'takeStagedFile');
    }
  });
}
