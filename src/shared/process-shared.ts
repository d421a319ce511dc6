/**
 * The memory that every thread of this process shares, whatever engine or cache folder it serves: the thread table and the
 * words of `bufferAccess`. Made once by the main thread (see host/process-registry.ts) and given to every worker.
 */

import type { TableSpec } from './sync/lock-table.ts';
import { LockTable } from './sync/lock-table.ts';
import { BUFFER_ACCESS } from './sync/ranks.ts';
import type { ReentrantLock } from './sync/reentrant.ts';
import type { ThreadHandle } from './sync/thread-table.ts';
import { ThreadTable } from './sync/thread-table.ts';

export interface ProcessShared {
  readonly threads: SharedArrayBuffer;
  readonly bufferAccess: SharedArrayBuffer;
}

const SPECS: readonly TableSpec[] = [{ ...BUFFER_ACCESS, kind: 'reentrant' }];

export function createProcessShared(): ProcessShared {
  return { threads: ThreadTable.create(), bufferAccess: new SharedArrayBuffer(LockTable.wordsFor(SPECS) * 4) };
}

/** The process-wide locks as a table, for `diagnose()`. */
export function processLocks(shared: ProcessShared): LockTable {
  return new LockTable(new Int32Array(shared.bufferAccess), 0, SPECS);
}

/** This thread's object of `bufferAccess`. */
export function bufferAccessLock(shared: ProcessShared, self: ThreadHandle): ReentrantLock {
  return processLocks(shared).reentrant(BUFFER_ACCESS.name, self);
}
