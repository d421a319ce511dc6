/**
 * The explorer finds what it is there to find: each bug is planted into the compiled source, one at a time.
 * What must not happen: a planted bug that every explored schedule survives.
 */
import { describe, expect, test } from 'vitest';
import { conditionScenario, mutexScenario, ringScenario } from './scenarios.ts';
import type { Bound, Scenario } from './scheduler.ts';
import { explore } from './scheduler.ts';
import type { Mutation } from './transform.ts';
import type { SyncOptions, SyncWorld } from './world.ts';
import { syncWorld } from './world.ts';

const FOREVER = Number.POSITIVE_INFINITY;
const deep = process.env.TIDEMARK_LONG === '1';
const lockWord = (find: RegExp, replace: string): Mutation => ({ path: 'shared/sync/lock-word', find, replace });
const condition = (find: RegExp, replace: string): Mutation => ({ path: 'shared/sync/condition', find, replace });

interface Bug {
  readonly name: string;
  readonly mutations: readonly Mutation[];
  readonly scenario: (sync: SyncWorld) => Scenario;
  readonly violation: RegExp;
  readonly sync?: SyncOptions;
  readonly bound?: Bound;
}

const twoThreads = (sync: SyncWorld) => mutexScenario(sync, { threads: 2, rounds: 2 });
const threeThreads = (sync: SyncWorld) => mutexScenario(sync, { threads: 3, rounds: 1 });
const withAborter = (sync: SyncWorld) => conditionScenario(sync, { consumers: 1, items: 1, produced: 0, aborter: true });

const BUGS: Bug[] = [
  {
    name: 'taking a free lock as a load and a store lets two in',
    mutations: [
      lockWord(
        /Atomics\.compareExchange\(words, at \+ STATE, 0, me << 1\) === 0;/,
        '(Atomics.load(words, at + STATE) === 0 && Atomics.store(words, at + STATE, me << 1) !== 0);',
      ),
    ],
    scenario: twoThreads,
    violation: /two inside|not held/,
    bound: { preemptions: 3 },
  },
  {
    name: 'a release that does not notify (lost wake-up)',
    mutations: [lockWord(/\(Atomics\.exchange\(words, at \+ STATE, 0\) & CONTENDED\) !== 0/, 'Atomics.exchange(words, at + STATE, 0) < 0')],
    scenario: twoThreads,
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
  },
  {
    name: 'a release as a load and a store loses the contended bit',
    mutations: [lockWord(/Atomics\.exchange\(words, at \+ STATE, 0\)/, '(Atomics.load(words, at + STATE) | Atomics.store(words, at + STATE, 0))')],
    scenario: twoThreads,
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
  },
  {
    name: 'taking the lock after a sleep without the contended bit (needs three threads)',
    mutations: [lockWord(/\(me << 1\) \| CONTENDED\) !== 0/, 'me << 1) !== 0')],
    scenario: threeThreads,
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
    bound: { preemptions: 2 },
  },
  {
    name: 'giving up after a wake-up before the contended bit is set again loses the wake-up',
    mutations: [lockWord(/const contended = /, 'if (now() >= end) break; const contended = ')],
    scenario: (sync) => mutexScenario(sync, { threads: 3, rounds: [2, 1, 1], timeouts: [FOREVER, 5, FOREVER], passesMs: 10 }),
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
    bound: { preemptions: 3 },
  },
  {
    name: 'leaving the queue without waking the next who stands back',
    mutations: [lockWord(/Atomics\.notify\(words, at \+ PRIORITY, 1\);/, '')],
    scenario: threeThreads,
    violation: /asleep for ever/,
    sync: { fairAfterMs: 0 },
    bound: { preemptions: 2 },
  },
  {
    name: 'standing back without passing on a consumed wake-up',
    mutations: [lockWord(/Atomics\.notify\(words, at \+ STATE, 1\); \/\/ pass on/, '//')],
    scenario: (sync) => mutexScenario(sync, { threads: 3, rounds: [2, 1, 1] }),
    violation: /asleep for ever/,
    sync: { fairAfterMs: 1 },
    bound: { preemptions: 3 },
  },
  {
    name: 'taking a free lock although somebody has priority (starvation)',
    mutations: [lockWord(/Atomics\.load\(words, at \+ PRIORITY\) === 0 &&/, '')],
    scenario: (sync) => mutexScenario(sync, { threads: 3, rounds: [1, 2, 2], overtakes: 2 }),
    violation: /overtaken/,
    sync: { fairAfterMs: 1 },
    bound: { preemptions: 2 },
  },
  {
    name: 'keeping priority after the turn',
    mutations: [lockWord(/Atomics\.store\(words, at \+ PRIORITY, 0\);/, '')],
    scenario: twoThreads,
    violation: /asleep for ever|not free/,
    sync: { fairAfterMs: 0 },
  },
  {
    name: 'taking over from the dead without a compare-and-swap lets two in',
    mutations: [
      lockWord(
        /Atomics\.compareExchange\(words, at \+ STATE, state, \(me << 1\) \| CONTENDED\) === state/,
        'Atomics.store(words, at + STATE, (me << 1) | CONTENDED) !== 0',
      ),
    ],
    scenario: (sync) => mutexScenario(sync, { threads: 3, rounds: 1, mortal: [0], onOwnerDeath: 'takeover' }),
    violation: /two inside|not held/,
    sync: { fairAfterMs: 0, sliceMs: 50 },
    bound: { preemptions: 3, maxSteps: 400 },
  },
  {
    name: 'a reentrant lock released at the first of two releases',
    mutations: [{ path: 'shared/sync/reentrant', find: /DEPTH\] > 1/, replace: 'DEPTH] > 99' }],
    scenario: (sync) => mutexScenario(sync, { threads: 2, rounds: 1, kind: 'ReentrantLock', depth: 2 }),
    violation: /not held by this thread|two inside/,
  },
  {
    name: 'a condition that reads its sequence after it has released the mutex',
    mutations: [condition(/const seen = ticket \?\? this\.ticket\(\);/, ''), condition(/timeoutMs, seen\)/, 'timeoutMs, this.ticket())')],
    scenario: (sync) => conditionScenario(sync, { consumers: 1, items: 1 }),
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
  },
  {
    name: 'a broadcast that does not bump the sequence',
    mutations: [condition(/Atomics\.add\(words, at \+ SEQ, 1\);/, '')],
    scenario: (sync) => conditionScenario(sync, { consumers: 1, items: 1 }),
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
  },
  {
    name: 'a broadcast that wakes only one',
    mutations: [condition(/Atomics\.notify\(words, at \+ SEQ\)/, 'Atomics.notify(words, at + SEQ, 1)')],
    scenario: (sync) => conditionScenario(sync, { consumers: 2, items: 2, batch: true }),
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
    bound: { preemptions: 2 },
  },
  {
    name: 'a ticket taken after the predicate misses a broadcaster that holds no lock',
    mutations: [
      condition(/const ticket = this\.ticket\(\);\s+if \(predicate\(\)\)\s+return true;/, 'if (predicate()) return true; const ticket = this.ticket();'),
    ],
    scenario: withAborter,
    violation: /asleep for ever/,
    sync: { fairAfterMs: FOREVER },
  },
  {
    name: 'a predicate that is not tested again after the wait',
    mutations: [condition(/this\.wait\(Math\.min\(left, SLICE_MS\), ticket, site\);/, '$& return true;')],
    scenario: (sync) => conditionScenario(sync, { consumers: 2, items: 2 }),
    violation: /gave up/,
    sync: { fairAfterMs: FOREVER },
    bound: { preemptions: 2 },
  },
  {
    name: 'a ring that publishes a cell before it is filled',
    mutations: [
      { path: 'shared/ring', find: /words\[cell\] = a;/, replace: '' },
      { path: 'shared/ring', find: /return true;/, replace: 'words[cell] = a; return true;' },
    ],
    scenario: (sync) => ringScenario(sync, { capacity: 2, items: 2 }),
    violation: /got /,
  },
  {
    name: 'a ring that rings the bell before it publishes',
    mutations: [
      { path: 'shared/ring', find: /Atomics\.store\(words, at \+ TAIL, \(tail \+ 1\) \| 0\);/, replace: '' },
      { path: 'shared/ring', find: /return true;/, replace: 'Atomics.store(words, at + TAIL, (tail + 1) | 0); return true;' },
    ],
    scenario: (sync) => ringScenario(sync, { capacity: 2, items: 1 }),
    violation: /asleep for ever/,
  },
  {
    name: 'a ring that frees a cell before it has read it',
    mutations: [
      {
        path: 'shared/ring',
        find: /const found = /,
        replace: 'Atomics.store(words, at + HEAD, (head + 1) | 0); Atomics.load(words, at + TAIL); const found = ',
      },
      { path: 'shared/ring', find: /(const found = [^;]*;)\s+Atomics\.store\(words, at \+ HEAD, \(head \+ 1\) \| 0\);/, replace: '$1' },
    ],
    scenario: (sync) => ringScenario(sync, { capacity: 1, items: 2 }),
    violation: /got /,
  },
];

describe('seeded bugs', () => {
  test.each(BUGS.map((bug) => [bug.name, bug] as const))('%s', (_, { mutations, scenario, violation, sync: options, bound }) => {
    const bugged = syncWorld({ ...options, mutations });
    expect(explore(bugged.world, () => scenario(bugged), bound).violation).toMatch(violation);
    // The same scenario without the bug holds: the violation is the bug's. (In the short run its first schedules.)
    const healthy = syncWorld(options);
    const result = explore(healthy.world, () => scenario(healthy), deep ? bound : { ...bound, maxSchedules: 3_000 });
    expect(result).toMatchObject(deep ? { violation: null, cut: 0 } : { violation: null });
  });

  test('the explorer refuses a mutation that is not in the source', () => {
    expect(() => syncWorld({ mutations: [lockWord(/no such text/, '')] })).toThrow(/does not apply/);
  });
});
