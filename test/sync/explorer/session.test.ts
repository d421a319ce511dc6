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
import type { Bound, Scenario } from './scheduler.ts';
import { explore } from './scheduler.ts';
import { SESSION_BUGS } from './session-bugs.ts';
import { closedWhileWaiting, failedWhileWaiting, reservations, saving } from './session-scenarios.ts';
import { type SessionOptions, SessionWorld } from './session-world.ts';

const deep = process.env.TIDEMARK_LONG === '1';
const FULL = Number.POSITIVE_INFINITY;

/** Write-through and inline writes whose limit may pass at any step. */
const LIMITED: SessionOptions = { limits: { reserveWaitMs: 0, inlineWriteLimitMs: 5, publishGraceMs: 5 } };
const INLINE: SessionOptions = { limits: { ...LIMITED.limits, overflow: 'inline' } };
const CLOSED: SessionOptions = { closed: true };

type Case = readonly [name: string, options: SessionOptions, scenario: (env: SessionWorld) => Scenario, short: number, long: number];

const CASES: Case[] = [
  ['2 threads reserve all bytes', {}, (e) => reservations(e, { threads: 2 }), FULL, FULL],
  ['2 threads reserve all bytes, twice each', {}, (e) => reservations(e, { threads: 2, rounds: 2 }), 2, 4],
  ['3 threads reserve all bytes', {}, (e) => reservations(e, { threads: 3 }), 1, 3],
  ['a waiter for bytes and a close without a lock', CLOSED, (e) => closedWhileWaiting(e, { waiters: 1 }), 3, FULL],
  ['2 waiters for bytes and a close without a lock', CLOSED, (e) => closedWhileWaiting(e, { waiters: 2 }), 1, 3],
  ['both kinds of waiters, and a session given up without a lock', CLOSED, failedWhileWaiting, 1, 3],
  ['save against the writer', {}, (e) => saving(e, { saves: [1] }), FULL, FULL],
  ['2 saves, room for one, against the writer', {}, (e) => saving(e, { saves: [1, 2] }), 1, 3],
  ['the same boundary saved twice', {}, (e) => saving(e, { saves: [1, 1] }), 1, 3],
  ['save and mark against the writer', {}, (e) => saving(e, { saves: [1], ends: true }), 1, 4],
  ['save and mark against a writer whose disk fails', { failing: { sync: 0 } }, (e) => saving(e, { saves: [1], ends: true }), 1, 3],
  ['write-through with a limit against the writer', LIMITED, (e) => saving(e, { saves: [1], full: true }), 1, 4],
  ['write-through and cleanup', LIMITED, (e) => saving(e, { saves: [1], full: true, beside: ['cleanup'] }), 0, 2],
  ['inline write and cleanup', INLINE, (e) => saving(e, { saves: [1], full: true, beside: ['cleanup'] }), 0, 2],
  ['save and cleanup', {}, (e) => saving(e, { saves: [1], beside: ['cleanup'] }), 1, 2],
  ['save and cleanup of all', {}, (e) => saving(e, { saves: [1], beside: ['cleanupAll'] }), 1, 2],
  ['save and a mark from elsewhere', {}, (e) => saving(e, { saves: [1], beside: ['mark'] }), 1, 2],
  ['save and close', CLOSED, (e) => saving(e, { saves: [1], beside: ['close'] }), 1, 2],
  ['save and a reservation', {}, (e) => saving(e, { saves: [1], beside: ['reserve'] }), 1, 2],
  ['save and load', {}, (e) => saving(e, { saves: [1, 2], beside: ['load'] }), 0, 2],
  ['save and detach', {}, (e) => saving(e, { saves: [1], beside: ['take'] }), 1, 3],
  ['save twice and detach', {}, (e) => saving(e, { saves: [1, 1], beside: ['take'] }), 0, 2],
  ['save twice and cleanup', {}, (e) => saving(e, { saves: [1, 1], beside: ['cleanup'] }), 0, 2],
  ['save, detach and cleanup', {}, (e) => saving(e, { saves: [1], beside: ['take', 'cleanup'] }), 0, 2],
  ['a failing disk and cleanup', { failing: { sync: 0 } }, (e) => saving(e, { saves: [1], beside: ['cleanup'] }), 0, 2],
  ['a unit, its staged state and the end of its request', {}, (e) => saving(e, { saves: [1], bytes: 1000, unit: 'taken', ends: true }), 0, 2],
  ['a unit that fails and the end of its request', {}, (e) => saving(e, { saves: [1], bytes: 1000, unit: 'failed', ends: true }), 0, 2],
];

let schedules = 0;
let states = 0;

const boundOf = (preemptions: number): Bound => (preemptions === FULL ? {} : { preemptions });
const title = (preemptions: number) => (preemptions === FULL ? 'in full' : `up to ${preemptions} preemptions`);

describe('schedules of a session', () => {
  const cases = CASES.map(([name, options, scenario, short, long]) => {
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
