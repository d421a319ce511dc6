// The process is killed before each file operation of a store in turn. Must not happen: a boundary that was called durable
// and cannot be restored; a half-written file that is taken for a block; anything left of the crash after the next start.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { BLOCK, Harness, temporaryFolder } from './harness.ts';

const CHILD = fileURLToPath(new URL('./crash-child.mjs', import.meta.url));
const BLOCKS = 2;
const TOKENS = Uint32Array.from({ length: BLOCKS * BLOCK }, (_, i) => i);

interface Line {
  durable?: number;
  operations?: number;
}

async function runUntil(operation: number): Promise<{ dir: string; killed: boolean; durable: number[]; operations: number }> {
  const dir = join(temporaryFolder(), 'cache');
  mkdirSync(dir, { mode: 0o700 });
  const { stdout, stderr, signal } = await runNode([CHILD, dir, String(operation), String(BLOCKS)]);
  expect(stderr).toBe('');
  const lines = stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Line);
  return { dir, killed: signal === 'SIGKILL', durable: lines.flatMap((line) => line.durable ?? []), operations: lines.at(-1)?.operations ?? 0 };
}

it('[D58] R12, R16: whatever was durable is restored, whatever was not is gone or whole', async () => {
  const whole = await runUntil(0);
  expect(whole.killed).toBe(false);
  expect(whole.durable).toEqual([16, 32]);
  const points = Array.from({ length: whole.operations }, (_, i) => i + 1);
  const reached = new Set<number>();
  const check = async (operation: number): Promise<void> => {
    const { dir, killed, durable } = await runUntil(operation);
    expect(killed, `killed at ${operation}`).toBe(true);
    const harness = new Harness({ dir });
    const { end, parts } = harness.lookUp(TOKENS, { fingerprint: 'model', extraKeys: [] });
    const tokenCount = end.type === 'done' ? end.tokenCount : 0;
    expect(tokenCount, `killed at ${operation}: ${JSON.stringify(end)}`).toBeGreaterThanOrEqual(Math.max(0, ...durable));
    expect(harness.of('degraded')).toEqual([]);
    expect(harness.tree().filter((name) => name.startsWith('blocks/') && name.endsWith('.tmp'))).toEqual([]);
    if (end.type === 'done') expect(parts.at(-1)).toMatchObject({ part: 'state', end: tokenCount });
    reached.add(tokenCount);
  };
  // Two children at a time.
  const queue = [...points];
  await Promise.all(
    [0, 1].map(async () => {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) await check(next);
    }),
  );
  expect([...reached].sort((a, b) => a - b)).toEqual([0, 16, 32]);
}, 120_000);
