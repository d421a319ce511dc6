/**
 * The only place in the project that clears MLX's allocator cache or a thread's streams.
 *
 * A cache clear frees buffers without asking who uses them: on a GPU it does not wait for any stream, on CPU it waits for all streams of the
 * process and may deliver another engine's error. Hence the order here: drain first, then under `bufferAccess` (which whoever copies bytes out
 * of MLX buffers also holds) synchronize again every stream of this thread, then clear.
 */

import { StreamAffinityError } from '../../shared/errors.ts';
import { mlx } from './binding.ts';
import type { Stream } from './types.ts';

const native = mlx();

/** The process-wide leaf lock over MLX buffer bytes. */
export interface BufferAccess {
  acquire(timeoutMs: number, site: string): boolean;
  release(): void;
}

/** How long a clear may wait for `bufferAccess` before it is skipped. */
export const CLEAR_LOCK_TIMEOUT_MS = 1_000;

const counts = { done: 0, skipped: 0 };

/** Clears done by this thread, and those skipped because `bufferAccess` was not had in time. */
export function clearCounts(): Readonly<typeof counts> {
  return counts;
}

/**
 * Drains `stream`, then clears the allocator cache under `bufferAccess`. False when the lock was not had in time: nothing was cleared, which
 * costs memory and is made up by the next clear. Errors of the streams are thrown, and have poisoned the tensors they belong to.
 */
export function syncAndClearCache(stream: Stream, bufferAccess: BufferAccess): boolean {
  native.synchronize(stream);
  if (!bufferAccess.acquire(CLEAR_LOCK_TIMEOUT_MS, 'syncAndClearCache')) {
    counts.skipped++;
    return false;
  }
  try {
    native.synchronize(stream);
    // Default streams of the thread are among the live ones.
    for (const other of native.liveStreams()) if (other !== stream) safeSyncStream(other);
    native.clearCache();
    counts.done++;
    return true;
  } finally {
    bufferAccess.release();
  }
}

/** Synchronizes a stream that may be gone already. Only "There is no Stream" is swallowed. */
export function safeSyncStream(stream: Stream): void {
  try {
    native.synchronize(stream);
  } catch (error) {
    if (!(error instanceof StreamAffinityError)) throw error;
  }
}

/** Ends this thread's streams, at its end: their values are dead afterwards. */
export function clearThreadStreams(): void {
  for (const stream of native.liveStreams()) safeSyncStream(stream);
  native.clearStreams();
}
