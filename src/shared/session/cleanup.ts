/**
 * Cleanup in two steps, so that it can be begun on any thread and finished by whoever holds `writerBusy`.
 *
 * 1. `forget`: under pending, registry and cancelled, nothing known of the request stays known. Items in flight get a cancel
 *    mark of their generation and lose their pending entry; files are condemned. What a unit in the store worker still needs
 *    is left, and goes when that unit is done; what is being detached is left to whoever detaches it.
 * 2. `sweep`: with `writerBusy`, and no other lock over file operations, condemned files and empty folders are removed. The
 *    writer sweeps before each item and when it is told that there is something; a cleanup thread that gets `writerBusy` in
 *    time does it itself.
 * An item that the writer holds meanwhile is ended by the writer: it sees the mark at one of three points (before the write,
 * before the rename, after it) and removes what it made. The mark is a word of the item, so it goes with the item.
 */
import { dirname } from 'node:path';
import { errnoOf, type Files } from '../files.ts';
import { requestFolder, stagedPath } from '../staging.ts';
import { DECISION, FLAG, ITEM, KIND, STATE } from './item-table.ts';
import { condemn, withdraw } from './publication.ts';
import { FILE_STATE, RECORD, type Registry } from './registry.ts';
import type { RequestKey } from './request-key.ts';
import type { Session } from './session.ts';

export interface Forgotten {
  /** Items in flight that carry a cancel mark now, earlier ones of the same request included. */
  inFlight: number;
  /** Files that wait for their removal, those that an earlier cleanup condemned included. */
  condemned: number;
}

/** Forgets a request (`key`), one boundary of it (`tokenCount`), or everything (`key` null). */
export function forget(session: Session, key: RequestKey | null, tokenCount: number | null = null): Forgotten {
  const { items, registry, ledger } = session;
  const matches = (item: number) => (key === null || items.hasKey(item, key)) && (tokenCount === null || items.get(item, ITEM.tokenCount) === tokenCount);
  const result = session.settleAll('forget', () => {
    for (let item = 0; item < session.layout.firstUnit; item++) {
      if (items.get(item, ITEM.visible) !== 1 || !matches(item) || claimedByUnit(session, items.keyOf(item), items.get(item, ITEM.tokenCount))) continue;
      withdraw(session, item, DECISION.cancelled, 'cancelled');
    }
    for (const index of registry.recordsOf(key)) {
      const record = registry.read(index);
      if (tokenCount !== null && record.tokenCount !== tokenCount) continue;
      if (record.state === FILE_STATE.detaching && !session.self.table.isDead(registry.get(index, RECORD.detacher))) {
        // If it cannot be renamed away, whoever tries condemns it.
        registry.set(index, RECORD.forgotten, 1);
        continue;
      }
      if (record.state !== FILE_STATE.file && record.state !== FILE_STATE.detaching) continue;
      if (claimedByUnit(session, record.key, record.tokenCount)) continue;
      ledger.move('written', 'dropped:cancelled');
      condemn(session, index);
    }
    return { inFlight: countCancelled(session, key), condemned: registry.recordsOf(key).filter((index) => waitsForRemoval(registry, index)).length };
  });
  if (result.inFlight > 0 || result.condemned > 0) {
    session.stagedChanged();
    session.writerBell.ring();
  }
  return result;
}

/** A unit that is not done yet and has its state in that staged file; it is told that the request has ended. */
function claimedByUnit(session: Session, key: RequestKey, tokenCount: number): boolean {
  const { items } = session;
  for (let item = session.layout.firstUnit; item < items.count; item++) {
    if (items.get(item, ITEM.state) === STATE.free || items.get(item, ITEM.tokenCount) !== tokenCount) continue;
    if (!items.has(item, FLAG.hasState) || !items.hasKey(item, key)) continue;
    items.raise(item, FLAG.requestEnded);
    return true;
  }
  return false;
}

/** Items in flight with a cancel mark: of one request, or of all. Exact under the locks, a moment's figure without. */
export function countCancelled(session: Session, key: RequestKey | null): number {
  const { items } = session;
  let count = 0;
  for (let item = 0; item < session.layout.firstUnit; item++) {
    if (items.get(item, ITEM.kind) !== KIND.state || items.get(item, ITEM.state) === STATE.free) continue;
    if (items.isCancelled(item) && (key === null || items.hasKey(item, key))) count++;
  }
  return count;
}

function waitsForRemoval(registry: Registry, index: number): boolean {
  return registry.get(index, RECORD.state) === FILE_STATE.condemned && registry.get(index, RECORD.removeFailed) === 0;
}

/** Removes condemned files and their empty folders. `writerBusy` is held. Returns what could not be removed. */
export function sweep(session: Session, files: Files, key: RequestKey | null = null): { removed: number; errors: string[] } {
  const { registry, memory } = session;
  const errors: string[] = [];
  let removed = 0;
  for (;;) {
    const next = session.settleRegistry('sweep', () => {
      for (const index of registry.recordsOf(key)) {
        if (waitsForRemoval(registry, index)) return registry.read(index);
      }
      return null;
    });
    if (next === null) return { removed, errors };
    const path = stagedPath(memory.stagingDir, next.key, next.tokenCount);
    const failure = attempt(() => removeStaged(files, path));
    if (failure !== null) errors.push(`${failure} ${path}`);
    session.settleRegistry('swept', () => {
      // A save of the same boundary may have taken the record over meanwhile; then the file is its business.
      if (registry.get(next.index, RECORD.state) !== FILE_STATE.condemned || registry.get(next.index, RECORD.generation) !== next.generation) return;
      session.addCondemned(-1);
      if (failure === null) registry.remove(next.index);
      else registry.set(next.index, RECORD.removeFailed, 1); // goes with the session's staging
    });
    if (failure === null) removed++;
    const folderFailure = removeFolderIfUnused(session, files, next.key);
    if (folderFailure !== null) errors.push(folderFailure);
  }
}

/** Removes the file; where a link lies in the folder's place, the link and nothing behind it. */
function removeStaged(files: Files, path: string): void {
  const folder = dirname(path);
  const kind = files.kind(folder);
  if (kind === 'folder') files.removeFile(path);
  else if (kind !== 'missing') files.removeFile(folder);
}

/**
 * The folder of a request goes with its last record. Without `writerBusy` (a taken file) the writer may be about to use it:
 * the removal then fails because it is not empty, or the writer makes it again. `ending`: generation of an item that is about
 * to end without a file, whose record does not count.
 */
export function removeFolderIfUnused(session: Session, files: Files, key: RequestKey, ending = 0): string | null {
  const { registry } = session;
  const used = session.settleRegistry('folder', () => registry.recordsOf(key).some((index) => registry.get(index, RECORD.generation) !== ending));
  if (used) return null;
  const folder = requestFolder(session.memory.stagingDir, key);
  const failure = attempt(() => files.removeFolderIfEmpty(folder));
  return failure === null ? null : `${failure} ${folder}`;
}

function attempt(act: () => unknown): string | null {
  try {
    act();
    return null;
  } catch (error) {
    return errnoOf(error);
  }
}
