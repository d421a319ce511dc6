/**
 * Schedules of a session's real protocol: reservations on `pendingCond`, publication, the writer, write-through and inline
 * writes, cleanup, detaching of staged files, units in the store worker, closing without a lock.
 * What must not happen: bytes that are not accounted for, a file nobody knows, a record without its file, an item published
 * twice or after its time, a boundary in neither pending buffer nor registry, a waiter that nobody wakes.
 *
 * Two threads are run in full where it says so, else within a number of preemptions, stated in the title; the short run uses
 * smaller numbers than the long one.
 */
import { afterAll, describe, expect, test } from 'vitest';
import type { Bound } from './scheduler.ts';
import { explore } from './scheduler.ts';
import { SESSION_BUGS } from './session-bugs.ts';
import { FULL, SESSION_CASES } from './session-cases.ts';
import { SessionWorld } from './session-world.ts';

const deep = process.env.TIDEMARK_LONG === '1';

let schedules = 0;
let states = 0;

const boundOf = (preemptions: number): Bound => (preemptions === FULL ? {} : { preemptions });
const title = (preemptions: number) => (preemptions === FULL ? 'in full' : `up to ${preemptions} preemptions`);

describe('schedules of a session', () => {
  const cases = SESSION_CASES.map(([name, options, scenario, short, long]) => {
    const preemptions = deep ? long : short;
    return [`${name}, ${title(preemptions)}`, options, scenario, boundOf(preemptions)] as const;
  });
  test.each(cases)('%s', (_, options, scenario, bound) => {
    const env = new SessionWorld(options);
    const result = explore(env.world, () => scenario(env), bound);
    schedules += result.schedules;
    states += result.states;
    expect(result).toMatchObject({ violation: null, cut: 0 });
  });

  afterAll(() => console.log(`explored ${schedules} schedules of sessions, ${states} states`));
});

describe('seeded bugs of a session', () => {
  test.each(SESSION_BUGS.map((bug) => [bug.name, bug] as const))('%s', (_, { mutations, scenario, violation, options = {}, bound = {} }) => {
    const env = new SessionWorld({ ...options, mutations });
    expect(explore(env.world, () => scenario(env), bound).violation).toMatch(violation);
  });
});
