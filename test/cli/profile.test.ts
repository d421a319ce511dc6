/**
 * `node --cpu-prof` over a run. What must not happen: a thread without a profile, or a wait that looks like work.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { watchLeaks } from '../helpers/leaks.ts';
import { CLI } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { GREEDY } from './command.ts';

watchLeaks();

interface Profile {
  nodes: { id: number; callFrame: { functionName: string; url: string } }[];
  samples: number[];
  timeDeltas: number[];
}

/** Milliseconds a thread spent in each function itself, by name. */
function selfTimes(profile: Profile): Map<string, number> {
  const names = new Map(profile.nodes.map(({ id, callFrame }) => [id, callFrame.functionName]));
  const times = new Map<string, number>();
  for (const [i, id] of profile.samples.entries()) {
    const name = names.get(id)!;
    times.set(name, (times.get(name) ?? 0) + profile.timeDeltas[i]! / 1000);
  }
  return times;
}

test('one profile per thread, in which waiting is told from work by the name of the function', async () => {
  const dir = tempDir('prof');
  const args = [
    '--cpu-prof',
    `--cpu-prof-dir=${dir}`,
    CLI,
    'generate',
    ...GREEDY,
    '--cache',
    join(tempDir(), 'cache'),
    '--max-tokens',
    '40',
    'The kernel schedules',
  ];
  expect((await runNode(args, { timeoutMs: 50_000 })).code).toBe(0);
  const profiles = readdirSync(dir).map((name) => JSON.parse(readFileSync(join(dir, name), 'utf8')) as Profile);
  const threadOf = (profile: Profile): string => {
    const ran = (file: string) => profile.nodes.some(({ callFrame }) => callFrame.url.endsWith(file));
    const entries: [string, string][] = [
      ['cli/main.js', 'main'],
      ['host/keeper.js', 'keeper'],
      ['engine-thread/main.js', 'engine'],
      ['snapshot-writer/main.js', 'writer'],
      ['store-worker/main.js', 'store'],
    ];
    return entries.find(([file]) => ran(`dist/${file}`))?.[1] ?? 'unknown';
  };
  const byThread = new Map(profiles.map((profile) => [threadOf(profile), selfTimes(profile)]));
  expect([...byThread.keys()].sort()).toEqual(['engine', 'keeper', 'main', 'store', 'writer']);
  expect(byThread.get('engine')!.get('waitForStream')).toBeGreaterThan(0);
  for (const loop of ['store', 'writer']) expect(byThread.get(loop)!.get('waitForWork')).toBeGreaterThan(0);
});
