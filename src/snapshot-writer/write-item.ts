/**
 * One item becomes one staged file. Runs on the writer, or on the engine thread for an inline write; `writerBusy` is held by
 * the caller from before the item is taken until this returns.
 *
 * Order: folder, temporary name in the same folder, payload, checksums, header, file sync, decision, rename, release of the bytes.
 * A cancel mark is looked at before the write, before the rename (the compare-and-swap) and after it (under the locks). On
 * every way out but success neither temporary nor final file remains.
 */

import { dirname } from 'node:path';
import { headerBytesOf, sealImage } from '../shared/blocks/image.ts';
import type { PagedBytes } from '../shared/blocks/paged-bytes.ts';
import { DROP_REASONS, type DropReason, TidemarkError } from '../shared/errors.ts';
import { errnoOf, type Files, temporaryPathFor } from '../shared/files.ts';
import { removeFolderIfUnused } from '../shared/session/cleanup.ts';
import type { ItemRef } from '../shared/session/item-space.ts';
import { DECISION, ITEM } from '../shared/session/item-table.ts';
import { fillLeased } from '../shared/session/leases.ts';
import { settleGone, settleWritten, takeItem } from '../shared/session/publication.ts';
import { keyToHex, type RequestKey } from '../shared/session/request-key.ts';
import type { Session } from '../shared/session/session.ts';
import { ensureStagingRoot, requestFolder, stagedPath } from '../shared/staging.ts';
import { now } from '../shared/sync/clock.ts';

export type WriteOutcome =
  /** The file is on disk; its bytes are given back. */
  | { as: 'written'; bytes: number }
  | { as: 'failed'; errno: string; message: string }
  | { as: 'dropped'; reason: DropReason }
  /** Ended before by a cleanup or its saver, which has counted it. */
  | { as: 'passed' };

/** Why a write stopped without an error of the disk. */
class Stopped extends Error {
  readonly reason: DropReason;
  constructor(reason: DropReason) {
    super(reason);
    this.reason = reason;
  }
}

/** A folder may vanish between its making and the file in it, each time a taken file leaves one empty. */
const FOLDER_TRIES = 100;

/** So much is written before the disk is asked to begin with it; small pieces cost more than they gain. */
const WRITEBACK_BYTES = 8 * 1024 * 1024;

/** Writes the item unless it ended before. `deadline` (clock of `now()`) is tested between system calls. */
export function writeItem(session: Session, ref: ItemRef, files: Files, deadline = Number.POSITIVE_INFINITY): WriteOutcome {
  if (!takeItem(session, ref)) return { as: 'passed' };
  const { items, memory, self } = session;
  const key = items.keyOf(ref.item);
  const final = stagedPath(memory.stagingDir, key, items.get(ref.item, ITEM.tokenCount));
  const temporary = temporaryPathFor(final, `${items.get(ref.item, ITEM.tokenCount)}-${ref.item}-${ref.generation}`);
  const bytes = session.space.bytesOf(ref.item)!;
  let renamed = false;
  try {
    const check = () => {
      if (items.get(ref.item, ITEM.decision) !== DECISION.waiting) throw new Stopped('cancelled');
      if (now() > deadline) throw new Stopped('backpressure');
    };
    fill(session, ref);
    check();
    self.activity('file', final);
    writeTemporary(session, key, temporary, bytes, files, check);
    if (now() > deadline) throw new Stopped('backpressure');
    if (!items.decide(ref.item, DECISION.publishing)) throw new Stopped('cancelled');
    files.rename(temporary, final);
    renamed = true;
    if (settleWritten(session, ref) === 'written') return { as: 'written', bytes: bytes.byteLength };
    throw new Stopped('cancelled');
  } catch (error) {
    return giveUp(session, ref, files, error, renamed || !(error instanceof Stopped) ? [temporary, final] : [temporary]);
  } finally {
    self.idle();
    session.stagedChanged();
  }
}

/** A boundary whose bytes are not to be had any more is dropped: the disk has nothing to do with it. */
function fill(session: Session, ref: ItemRef): void {
  try {
    fillLeased(session, ref);
  } catch (error) {
    if (!(error instanceof TidemarkError) || error.code === 'LOCK_OWNER_DIED') throw error;
    throw new Stopped(DROP_REASONS.find((known) => known === error.details.reason) ?? 'capture');
  }
}

/** The payload first, which the disk begins to write while its checksums are computed; then the header that states them. */
function writeTemporary(session: Session, key: RequestKey, path: string, bytes: PagedBytes, files: Files, check: () => void): void {
  const fd = createTemporary(session, key, path, files);
  try {
    const headerBytes = headerBytesOf(bytes);
    for (let from = headerBytes; from < bytes.byteLength; from += WRITEBACK_BYTES) {
      const to = Math.min(from + WRITEBACK_BYTES, bytes.byteLength);
      writeRange(fd, path, bytes, from, to, files, check);
      files.startWriteback(fd, from, to - from);
    }
    sealImage(bytes);
    writeRange(fd, path, bytes, 0, headerBytes, files, check);
    check();
    files.sync(fd, path);
  } finally {
    files.close(fd);
  }
}

function writeRange(fd: number, path: string, bytes: PagedBytes, from: number, to: number, files: Files, check: () => void): void {
  let at = from;
  for (const segment of bytes.segments(from, to)) {
    check();
    files.writeAll(fd, segment, at, path);
    at += segment.length;
  }
}

function createTemporary(session: Session, key: RequestKey, path: string, files: Files): number {
  const folder = requestFolder(session.memory.stagingDir, key);
  for (let tries = 1; ; tries++) {
    try {
      files.ensureFolder(session.memory.stagingDir);
      files.ensureFolder(folder);
      return files.createExclusive(path);
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT' || tries === FOLDER_TRIES) throw error;
      // Somebody has removed staging altogether; if the cache folder itself is gone, this says so.
      if (files.kind(dirname(session.memory.stagingDir)) === 'missing') ensureStagingRoot(dirname(session.memory.stagingDir), files);
    }
  }
}

/** Removes what was made, then lets go of the bytes. What cannot be removed is reported with the failure and goes with the session's staging. */
function giveUp(session: Session, ref: ItemRef, files: Files, error: unknown, paths: string[]): WriteOutcome {
  const key = session.items.keyOf(ref.item);
  const leftovers: string[] = [];
  for (const path of paths) {
    try {
      // A link in the folder's place must not lead the removal elsewhere.
      if (files.kind(dirname(path)) === 'folder') files.removeFile(path);
    } catch (failure) {
      leftovers.push(`${errnoOf(failure)} ${path}`);
    }
  }
  const stopped = error instanceof Stopped ? error : null;
  // The folder goes first: whoever sees the end of the item finds nothing of it.
  const folderLeft = removeFolderIfUnused(session, files, key, ref.generation);
  if (folderLeft !== null) leftovers.push(folderLeft);
  const settled = settleGone(session, ref, stopped === null ? { failed: errnoOf(error) } : { dropped: stopped.reason });
  if (settled === 'settled before' && stopped !== null) return { as: 'passed' };
  if (stopped !== null) return { as: 'dropped', reason: stopped.reason };
  const message = `boundary ${keyToHex(key).slice(0, 12)}…: ${error instanceof Error ? error.message : String(error)}`;
  return { as: 'failed', errno: errnoOf(error), message: leftovers.length === 0 ? message : `${message}; left behind: ${leftovers.join(', ')}` };
}
