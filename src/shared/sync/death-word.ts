/**
 * The native core as the thread table uses it: it writes a word when this thread's environment ends, whatever ends it
 * (return, error, terminate), which nothing in JavaScript could.
 *
 * Without the addon a parent marks its worker dead from the 'exit' event (`ThreadTable.markDead`): later, but in the end as well.
 */

import type { NativeCore } from '../native-core.ts';
import { loadNativeCore } from '../native-core.ts';

export type DeathWords = Pick<NativeCore, 'deathWord' | 'cancelDeathWord' | 'threadId'>;

let replaced: DeathWords | null | undefined;

/** Replaces the native core in this thread; null is life without it. */
export function useDeathWords(words: DeathWords | null): void {
  replaced = words;
}

export function deathWords(): DeathWords | null {
  return replaced === undefined ? loadNativeCore() : replaced;
}
