/**
 * The engine's clears by steps. Must not happen: a clear right behind an answer, a finisher whose 8 steps another one cuts short, a long answer
 * or a long prompt without a clear.
 */
import { describe, expect, test } from 'vitest';
import { CacheClears } from '../../src/engine-thread/cache-clears.ts';

const CHUNK = 512;

/** Steps by kind; the list says after which of them a clear came (from 1). */
function engine(): { clears: CacheClears; cleared: number[]; decode(n: number): void; prefill(n: number, tokens: number): void } {
  const cleared: number[] = [];
  let step = 0;
  const clears = new CacheClears(() => void cleared.push(step), CHUNK);
  const times = (n: number, pass: () => void) => {
    for (let i = 0; i < n; i++) {
      step++;
      pass();
    }
  };
  return {
    clears,
    cleared,
    decode: (n) => times(n, () => clears.afterDecodeStep()),
    prefill: (n, tokens) => times(n, () => clears.afterPrefillPass(tokens)),
  };
}

describe('after an answer', () => {
  test('[J110] not at once, but 8 steps later', () => {
    const { clears, cleared, decode } = engine();
    decode(3);
    clears.afterFinish();
    expect(cleared).toEqual([]);
    decode(7);
    expect(cleared).toEqual([]);
    decode(10);
    expect(cleared).toEqual([11]);
  });

  test('[J110] a further one moves it on, so that each has its 8 steps', () => {
    const { clears, cleared, decode } = engine();
    decode(1);
    clears.afterFinish();
    decode(5);
    clears.afterFinish();
    decode(7);
    expect(cleared).toEqual([]);
    decode(20);
    expect(cleared).toEqual([14]);
  });

  test('[J110] a clear for another reason in between does not shorten it, nor take its place', () => {
    const { clears, cleared, prefill } = engine();
    prefill(1, 10);
    clears.afterFinish();
    prefill(2, CHUNK);
    prefill(10, 1);
    expect(cleared).toEqual([2, 3, 9]);
  });

  test('[J110] without an answer that ended, nothing is scheduled', () => {
    const { cleared, decode, prefill } = engine();
    decode(400);
    prefill(20, 10);
    expect(cleared).toEqual([]);
  });
});

describe('while work runs', () => {
  test('[J108] every 512 steps of decode', () => {
    const { cleared, decode } = engine();
    decode(1_600);
    expect(cleared).toEqual([512, 1_024, 1_536]);
  });

  test('[J108] after each chunk of prefill, of one pass or of several that end at boundaries', () => {
    const whole = engine();
    whole.prefill(3, CHUNK);
    expect(whole.cleared).toEqual([1, 2, 3]);
    const parts = engine();
    parts.prefill(9, CHUNK / 4);
    expect(parts.cleared).toEqual([4, 8]);
  });

  test('[J107] at once after a prefill that was broken off', () => {
    const { clears, cleared, prefill } = engine();
    prefill(1, 100);
    clears.afterBrokenOff();
    expect(cleared).toEqual([1]);
  });
});
