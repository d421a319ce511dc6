/**
 * The only place in the project that clears MLX's allocator cache or a thread's streams.
 *
 * A cache clear frees buffers without asking who uses them: on a GPU it does not wait for any stream, on CPU it waits for all streams of the
 * process and may deliver another engine's error. Hence the order here: drain first, then under `bufferAccess` (which whoever copies bytes out
 * of MLX buffers also holds) synchronize again every stream of this thread, its default streams last, then clear.
 */

import { StreamAffinityError } from '../../shared/errors.ts';
import { mlx } from './binding.ts';
import type { Stream } from './types.ts';
import { type MemoryReading, UnreleasedWindow } from './unreleased.ts';

const native = mlx();

/** The process-wide leaf lock over MLX buffer bytes. */
export interface BufferAccess {
  acquire(timeoutMs: number, site: string): boolean;
  release(): void;
}

/** How long a clear may wait for `bufferAccess` before it is skipped. */
export const CLEAR_LOCK_TIMEOUT_MS = 1_000;

const counts = { done: 0, skipped: 0, waitedMs: 0, longestWaitMs: 0 };
const unreleased = new UnreleasedWindow();

/** Clears done by this thread, those skipped because `bufferAccess` was not had in time, and how long they waited for it. */
export function clearCounts(): Readonly<typeof counts> {
  return counts;
}

/**
 * Drains `stream`, then clears the allocator cache under `bufferAccess`. False when the lock was not had in time: nothing was cleared, which
 * costs memory and is made up by the next clear. Errors of the streams are thrown, have poisoned the tensors they belong to, and nothing is
 * cleared then.
 */
export function syncAndClearCache(stream: Stream, bufferAccess: BufferAccess): boolean {
  native.synchronize(stream);
  if (!acquire(bufferAccess)) {
    counts.skipped++;
    return false;
  }
  try {
    native.synchronize(stream);
    const defaults = native.defaultStreams();
    for (const other of native.liveStreams()) if (other !== stream && !defaults.includes(other)) safeSyncStream(other);
    // Unlike the others', an error of these is never passed over: this thread's own calls into MLX may have put work there.
    for (const own of defaults) native.synchronize(own);
    clear();
    counts.done++;
    return true;
  } finally {
    bufferAccess.release();
  }
}

function acquire(bufferAccess: BufferAccess): boolean {
  const begin = performance.now();
  const had = bufferAccess.acquire(CLEAR_LOCK_TIMEOUT_MS, 'syncAndClearCache');
  const waited = performance.now() - begin;
  counts.waitedMs += waited;
  counts.longestWaitMs = Math.max(counts.longestWaitMs, waited);
  return had;
}

function clear(): void {
  const cached = native.cacheBytes();
  const before = cached === 0 ? null : readMemory();
  native.clearCache();
  if (before !== null) unreleased.freed(before, cached - native.cacheBytes());
}

/**
 * An estimate of the bytes that this thread's clears have given back and that the system still charges to the process. Whoever compares
 * the process's footprint with a limit takes them off first.
 */
export function unreleasedBytes(): number {
  return unreleased.isEmpty ? 0 : unreleased.estimate(readMemory());
}

function readMemory(): MemoryReading {
  return { now: performance.now(), footprint: process.memoryUsage.rss(), allocator: native.activeBytes() + native.cacheBytes() };
}

/** Synchronizes a stream that may be gone already. Only "There is no Stream" is swallowed. */
export function safeSyncStream(stream: Stream): void {
  try {
    native.synchronize(stream);
  } catch (error) {
    if (!(error instanceof StreamAffinityError)) throw error;
  }
}

/**
 * Ends this thread's streams, at its end: their values are dead afterwards. All are drained first, whatever one of them reports; the first
 * error is thrown when they are gone.
 */
export function clearThreadStreams(): void {
  const errors: unknown[] = [];
  for (const stream of native.liveStreams()) {
    try {
      safeSyncStream(stream);
    } catch (error) {
      errors.push(error);
    }
  }
  native.clearStreams();
  if (errors.length > 0) throw errors[0];
}
