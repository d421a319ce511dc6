/**
 * Asks the native core to write a word when this thread's environment ends, whatever ends it (return, error, terminate).
 * Without the addon a parent marks its worker dead from the 'exit' event (`ThreadTable.markDead`): later, but in the end as well.
 */
export interface DeathWords {
  deathWord(words: Int32Array, index: number, value: number): void;
  setThreadName?(name: string): void;
  threadId?(): number;
}

let core: DeathWords | null = null;

export function useDeathWords(native: DeathWords | null): void {
  core = native;
}

export function deathWords(): DeathWords | null {
  return core;
}
