/** Scenarios of a session, and how many preemptions the short and the long run go through in full. */
import type { Scenario } from './scheduler.ts';
import { type Action, closedWhileWaiting, failedWhileWaiting, pair, reservations, saving } from './session-scenarios.ts';
import type { SessionOptions, SessionWorld } from './session-world.ts';

/** Every schedule there is. */
export const FULL = Number.POSITIVE_INFINITY;

/** Write-through and inline writes whose limit may pass at any step. */
const LIMITED: SessionOptions = { limits: { reserveWaitMs: 0, inlineWriteLimitMs: 5, publishGraceMs: 5 } };
const INLINE: SessionOptions = { limits: { ...LIMITED.limits, overflow: 'inline' } };
const CLOSED: SessionOptions = { closed: true };

export type SessionCase = readonly [name: string, options: SessionOptions, scenario: (env: SessionWorld) => Scenario, short: number, long: number];

/** Two threads over a boundary in this state. */
const PAIRS: readonly (readonly ['nothing' | 'queued' | 'written', Action, Action])[] = [
  ['nothing', 'save', 'cleanup'],
  ['nothing', 'save', 'save'],
  ['nothing', 'save and write', 'take'],
  ['queued', 'write', 'cleanup'],
  ['queued', 'write', 'cleanupAll'],
  ['queued', 'write', 'mark'],
  ['queued', 'write', 'save'],
  ['queued', 'write', 'load'],
  ['queued', 'write', 'take'],
  ['queued', 'write', 'reserve'],
  ['queued', 'cleanup', 'load'],
  ['written', 'take', 'cleanup'],
  ['written', 'take', 'cleanupAll'],
  ['written', 'take', 'save and write'],
  ['written', 'take', 'take'],
  ['written', 'take', 'load'],
  ['written', 'cleanup', 'save'],
  ['written', 'cleanup', 'cleanupAll'],
  ['written', 'cleanup', 'load'],
  ['written', 'mark', 'write'],
];

const pairs = PAIRS.map(
  ([before, one, other]): SessionCase => [`${one} against ${other}, ${before} before`, {}, (e) => pair(e, { before, threads: [one, other] }), 2, FULL],
);

/** The writer's rename works, the one of whoever takes the file does not. */
export const RENAME_FAILS: SessionOptions = { failing: { rename: 1 } };

export const SESSION_CASES: readonly SessionCase[] = [
  ...pairs,
  ['a detach that fails against cleanup', RENAME_FAILS, (e) => pair(e, { before: 'written', threads: ['take', 'cleanup'] }), 2, FULL],
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
