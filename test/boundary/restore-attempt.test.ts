/**
 * One try to restore, from its look-up to its caches. What must not happen: caches that are not whole, a part that is kept from the
 * region, a reason that is not the one that ended it.
 */
import { describe, expect, it } from 'vitest';
import { RestoreAttempt, type RestoreAttemptParts } from '../../src/engine-thread/boundary/restore-attempt.ts';
import { TidemarkError } from '../../src/shared/errors.ts';

interface Log {
  released: number;
  cancelled: boolean;
  builderReleased: boolean;
}

/** An attempt over a ticket that gives these events, and a builder that fails where it is told to. */
function attemptOf(events: object[], options: { failIn?: 'add' | 'finish'; error?: Error; deadlineMs?: number; lookup?: RestoreAttemptParts['lookup'] } = {}) {
  const log: Log = { released: 0, cancelled: false, builderReleased: false };
  const fail = (where: 'add' | 'finish') => {
    if (options.failIn === where) throw options.error ?? new Error('a state of another shape');
  };
  const ticket = {
    next: () => events.shift() ?? { type: 'waiting' },
    cancel: () => {
      log.cancelled = true;
    },
  };
  const builder = {
    add: (part: { bytes: number }) => {
      fail('add');
      return part.bytes;
    },
    finish: () => {
      fail('finish');
      return ['caches'];
    },
    release: () => {
      log.builderReleased = true;
    },
  };
  const attempt = new RestoreAttempt({
    lookup: options.lookup ?? (() => null),
    start: () => ticket as never,
    builder: () => builder as never,
    deadlineMs: options.deadlineMs ?? 60_000,
  });
  attempt.begin();
  const part = () => ({ type: 'part', bytes: 10, release: () => log.released++ });
  return { attempt, log, part };
}

describe('a restore attempt', () => {
  it('gives its caches and the bytes that came, once everything is there; a shortfall keeps its reason', () => {
    const events: object[] = [];
    const { attempt, part, log } = attemptOf(events);
    events.push(part(), part());
    expect(attempt.poll(0)).toBe('waiting');
    events.push({ type: 'done', tokenCount: 32, reason: 'gap', detail: 'block 3' });
    const outcome = { caches: ['caches'], tokenCount: 32, bytes: 20, missReason: 'gap', detail: 'block 3' };
    expect(attempt.poll(0)).toEqual(outcome);
    expect(attempt.poll(0)).toEqual(outcome);
    expect(log).toMatchObject({ released: 2, builderReleased: false });
  });

  it.each([
    ['a part', 'add'],
    ['the whole', 'finish'],
  ] as const)('failed: the engine refuses %s; nothing is kept', (_, failIn) => {
    const events: object[] = [];
    const { attempt, part, log } = attemptOf(events, { failIn });
    events.push(part(), { type: 'done', tokenCount: 16, reason: null, detail: '' });
    expect(attempt.poll(0)).toMatchObject({ caches: null, tokenCount: 0, missReason: 'failed', detail: expect.stringContaining('another shape') });
    expect(log).toEqual({ released: 1, cancelled: true, builderReleased: true });
  });

  it('a refusal that states its reason is told by it', () => {
    const events: object[] = [];
    const error = new TidemarkError('FORMAT_INVALID', 'codec', { details: { missReason: 'codec' } });
    const { attempt, part } = attemptOf(events, { failIn: 'finish', error });
    events.push(part(), { type: 'done', tokenCount: 16, reason: null, detail: '' });
    expect(attempt.poll(0)).toMatchObject({ caches: null, missReason: 'codec' });
  });

  it('a look-up that knows better asks nobody; its deadline ends it; a miss ends it with its reason', () => {
    const known = attemptOf([], { lookup: () => ({ reason: 'evicted', detail: 'gone' }) });
    expect(known.attempt.poll(0)).toMatchObject({ caches: null, missReason: 'evicted', detail: 'gone' });
    const late = attemptOf([], { deadlineMs: -1 });
    expect(late.attempt.poll(0)).toMatchObject({ caches: null, missReason: 'deadline' });
    expect(late.log).toMatchObject({ cancelled: true, builderReleased: true });
    const missed = attemptOf([{ type: 'miss', reason: 'worker', detail: 'gone' }]);
    expect(missed.attempt.poll(0)).toMatchObject({ caches: null, missReason: 'worker' });
  });
});
