/**
 * Every schedule of the real lock and ring code within a bound: two threads in full, three with at least two preemptions.
 * What must not happen: two threads inside, a wake-up lost, an item lost or torn, a lock that is not free at the end.
 *
 * Slices are switched off (a lost wake-up sleeps for ever instead of being healed after 50 ms), and the time after which a
 * waiter gets priority is tried as never (plain futex), at once, and as it is.
 */
import { afterAll, describe, expect, test } from 'vitest';
import { conditionScenario, mutexScenario, ringScenario } from './scenarios.ts';
import type { Bound, Scenario } from './scheduler.ts';
import { explore } from './scheduler.ts';
import type { SyncOptions, SyncWorld } from './world.ts';
import { syncWorld } from './world.ts';

const FOREVER = Number.POSITIVE_INFINITY;
const NEVER_FAIR: SyncOptions = { fairAfterMs: FOREVER };
const FAIR_AT_ONCE: SyncOptions = { fairAfterMs: 0 };
const AS_IT_IS: SyncOptions = { fairAfterMs: 1 };
const deep = process.env.TIDEMARK_LONG === '1' ? 1 : 0;

let schedules = 0;
let states = 0;
let ran = 0;

type Case = readonly [name: string, options: SyncOptions, scenario: (sync: SyncWorld) => Scenario, bound: Bound];

const FAIRNESS = [
  ['never fair', NEVER_FAIR],
  ['fair at once', FAIR_AT_ONCE],
  ['as it is', AS_IT_IS],
] as const;

const CASES: Case[] = [
  ['mutex, 2 threads, 2 rounds, in full, never fair', NEVER_FAIR, (w) => mutexScenario(w, { threads: 2, rounds: 2 }), {}],
  ['mutex, 2 threads, 2 rounds, in full, fair at once', FAIR_AT_ONCE, (w) => mutexScenario(w, { threads: 2, rounds: 2 }), {}],
  ['mutex, 2 threads, 2 rounds, as it is', AS_IT_IS, (w) => mutexScenario(w, { threads: 2, rounds: 2 }), { preemptions: 5 + deep }],
  ...FAIRNESS.map(
    ([name, options]): Case => [
      `mutex, 3 threads, 1 round, ${name}`,
      options,
      (w) => mutexScenario(w, { threads: 3, rounds: 1 }),
      { preemptions: 3 + 2 * deep },
    ],
  ),
  ...FAIRNESS.map(
    ([name, options]): Case => [
      `mutex, 3 threads, 2 rounds, ${name}`,
      options,
      (w) => mutexScenario(w, { threads: 3, rounds: 2 }),
      { preemptions: 2 + 2 * deep },
    ],
  ),
  ...FAIRNESS.map(
    ([name, options]): Case => [
      `mutex with timeouts, 3 threads, ${name}`,
      options,
      (w) => mutexScenario(w, { threads: 3, rounds: [2, 1, 1], timeouts: [FOREVER, 5, FOREVER], passesMs: 10 }),
      { preemptions: 2 + deep },
    ],
  ),
  // Whoever was past its look at the priority word may still be faster, once each; nobody else.
  ['fairness, 3 threads', AS_IT_IS, (w) => mutexScenario(w, { threads: 3, rounds: [1, 2, 2], overtakes: 2 }), { preemptions: 2 + deep }],
  ['try without waiting, 2 threads, in full', NEVER_FAIR, (w) => mutexScenario(w, { threads: 2, rounds: 2, timeouts: [0, FOREVER] }), {}],
  [
    `reentrant lock, 2 threads, depth 3, ${deep ? 'in full' : '4 preemptions'}`,
    FAIR_AT_ONCE,
    (w) => mutexScenario(w, { threads: 2, rounds: 2, kind: 'ReentrantLock', depth: 3 }),
    deep ? {} : { preemptions: 4 },
  ],
  [
    'reentrant lock, 3 threads, depth 2',
    AS_IT_IS,
    (w) => mutexScenario(w, { threads: 3, rounds: 2, kind: 'ReentrantLock', depth: 2 }),
    { preemptions: 2 + deep },
  ],
  // With slices as they are, since they are what notices a death: each thread ends, whenever and whoever dies.
  ...[[0], [1], [0, 1]].map(
    (mortal): Case => [
      `mutex, 3 threads, death of ${mortal.join(' and ')} at any step`,
      { fairAfterMs: 1, sliceMs: 50 },
      (w) => mutexScenario(w, { threads: 3, rounds: 1, mortal }),
      { preemptions: 2 + deep, maxSteps: 400 },
    ],
  ),
  [
    'lock that is taken over, 3 threads, death of 0 at any step',
    { fairAfterMs: 0, sliceMs: 50 },
    (w) => mutexScenario(w, { threads: 3, rounds: 1, mortal: [0], onOwnerDeath: 'takeover' }),
    { preemptions: 2 + 2 * deep, maxSteps: 400 },
  ],
  ['condition, 1 producer, 1 consumer, in full', NEVER_FAIR, (w) => conditionScenario(w, { consumers: 1, items: 1 }), {}],
  ['condition, 1 producer, 2 consumers, 1 broadcast each', NEVER_FAIR, (w) => conditionScenario(w, { consumers: 2, items: 2 }), { preemptions: 2 + 2 * deep }],
  [
    'condition, 1 producer, 2 consumers, 1 broadcast for both',
    FAIR_AT_ONCE,
    (w) => conditionScenario(w, { consumers: 2, items: 2, batch: true }),
    { preemptions: 2 + deep },
  ],
  ['condition with deadline, 2 consumers', NEVER_FAIR, (w) => conditionScenario(w, { consumers: 2, items: 2, consumerTimeout: 20 }), { preemptions: 2 + deep }],
  [
    'condition, 2 waiters and an aborter without the lock',
    NEVER_FAIR,
    (w) => conditionScenario(w, { consumers: 2, items: 2, produced: 0, aborter: true }),
    { preemptions: 2 + deep },
  ],
  ['condition, producer against aborter', NEVER_FAIR, (w) => conditionScenario(w, { consumers: 1, items: 1, aborter: true }), { preemptions: 4 + deep }],
  ['ring of 1, 3 items, in full', {}, (w) => ringScenario(w, { capacity: 1, items: 3 }), {}],
  ['ring of 2, 3 items, in full', {}, (w) => ringScenario(w, { capacity: 2, items: 3 }), {}],
  ['2 rings on one bell', {}, (w) => ringScenario(w, { capacity: 2, items: 2, rings: 2 }), { preemptions: 2 + 2 * deep }],
];

describe('schedules', () => {
  test.each(CASES)('%s', (_, options, scenario, bound) => {
    const sync = syncWorld(options);
    const result = explore(sync.world, () => scenario(sync), bound);
    schedules += result.schedules;
    states += result.states;
    ran++;
    expect(result).toMatchObject({ violation: null, cut: 0 });
  });

  afterAll(() => {
    console.log(`explored ${schedules} schedules of locks and rings, ${states} states`);
    if (ran === CASES.length) expect(schedules).toBeGreaterThan(deep ? 1_000_000 : 100_000);
  });
});
