/** Loads tidemark_core.node: what needs the operating system and no MLX. It is loaded by every thread. */

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

/** Why a lock was not had. `held`: another open file has it. `unsupported`: the file system has no flock. */
export interface FlockFailure {
  errno: number;
  message: string;
  held: boolean;
  unsupported: boolean;
}

export interface NativeCore {
  /**
   * Stores `value` in `words[index]` when this thread's environment ends, in every way it can end. 'ending' (default): at once, before MLX work
   * in flight is drained, for those who wait for this thread's locks. 'ended': after everything of this thread is drained and dropped.
   * The store wakes nobody: waiters look between slices of their wait.
   */
  deathWord(words: Int32Array, index: number, value: number, moment?: 'ending' | 'ended'): void;
  /** Takes back what was registered for this word. */
  cancelDeathWord(words: Int32Array, index: number): void;
  /** Puts the 'ending' words before cleanup hooks that other addons have added since. */
  deathWordsFirst(): void;
  /** Opens (creating, mode 0600, no symlink) and takes an exclusive flock without waiting: a descriptor, or why not. */
  flockTry(path: string): number | FlockFailure;
  /** Unlocks and closes; 0 or an errno. */
  flockRelease(fd: number): number;
  /** Flushes as far down as the platform can (F_FULLFSYNC on macOS, else fsync); 0 or an errno. */
  fullSync(fd: number): number;
  /** Sets an extended attribute (links not followed); 0 or an errno. */
  setAttribute(path: string, name: string, bytes: Uint8Array): number;
  /** An extended attribute, one character for each byte; null when there is none. */
  getAttribute(path: string, name: string): string | null;
  /** Has the system begin to write these bytes of the file, where it can (Linux). */
  startWriteback(fd: number, from: number, bytes: number): void;
  /** Ends the process at once: no exit handlers, no wait for threads stuck in native code. */
  exitNow(code: number): never;
  /** Names the calling thread for debuggers and profilers (15 bytes on Linux). Never call it on the main thread: that renames the process. */
  setThreadName(name: string): void;
  /** The operating system's id of the calling thread. */
  threadId(): number;
}

let loaded: { core: NativeCore; reason: null } | { core: null; reason: string } | undefined;

/** The addon, or null (see `nativeCoreProblem`). Never throws: everything but file locks and death words works without it. */
export function loadNativeCore(): NativeCore | null {
  loaded ??= open();
  return loaded.core;
}

/** Why there is no addon, for people; null when there is one. */
export function nativeCoreProblem(): string | null {
  loaded ??= open();
  return loaded.reason;
}

function open(): NonNullable<typeof loaded> {
  const file = fileURLToPath(new URL('../../build/Release/tidemark_core.node', import.meta.url));
  if (!existsSync(file)) return { core: null, reason: `${file} was not built; install CMake and a C++20 compiler and run the install script again` };
  try {
    return { core: createRequire(import.meta.url)(file) as NativeCore, reason: null };
  } catch (error) {
    return { core: null, reason: (error as Error).message };
  }
}
