/**
 * The command as a user starts it: `dist/cli/main.js` in a process of its own, with the real engine.
 */
import { type ChildOptions, type ChildResult, type LineChild, runNode, spawnLines } from '../helpers/child.ts';
import { CLI, TIDE_5M } from '../helpers/paths.ts';

/** Ends within this, also beside a busy test file. */
const LIMIT_MS = 50_000;

export function tidemark(args: readonly string[], options: ChildOptions = {}): Promise<ChildResult> {
  return runNode([CLI, ...args], { timeoutMs: LIMIT_MS, ...options });
}

export function tidemarkLines(args: readonly string[], options: ChildOptions = {}): LineChild {
  return spawnLines([CLI, ...args], { timeoutMs: LIMIT_MS, ...options });
}

/** Greedy, on the demo model, the same tokens everywhere. One BLAS thread: two test files at a time would fight for two cores. */
export const GREEDY: readonly string[] = ['--model', TIDE_5M, '--compute', 'float32', '--threads', '1', '--temperature', '0', '--ignore-eos'];

/** JSON lines as objects. */
export function parseLines(text: string): Record<string, unknown>[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}
