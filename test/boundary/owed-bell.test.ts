/**
 * The writer's bell is rung beside the next pass instead of behind the one before.
 * Must not happen: a boundary whose writer nobody wakes, however the pass after it turns out.
 */
import { describe, expect, it } from 'vitest';
import { OwedBell } from '../../src/engine-thread/boundary/owed-bell.ts';
import type { PassCompanion } from '../../src/engine-thread/boundary/recorder.ts';
import { Doorbell } from '../../src/shared/doorbell.ts';

function bells() {
  const word = new Int32Array(new SharedArrayBuffer(4));
  return { owed: new OwedBell(new Doorbell(word, 0)), rung: () => word[0]! };
}

describe('a bell that is owed', () => {
  it('is rung while the next pass is computed, before that one prepares its own boundary', () => {
    const { owed, rung } = bells();
    const seen: string[] = [];
    const own: PassCompanion = { built: () => [], running: () => seen.push(`prepared after ${rung()} bells`) };
    owed.owe();
    const pass = owed.alongside(own)!;
    pass.built();
    expect(rung()).toBe(0);
    pass.running();
    expect(seen).toEqual(['prepared after 1 bells']);
    owed.endOfRound(false);
    expect(rung()).toBe(1);
  });

  it('is rung beside a pass that ends at no boundary, and then leaves passes alone', () => {
    const { owed, rung } = bells();
    expect(owed.alongside(null)).toBeNull();
    owed.owe();
    owed.alongside(null)!.running();
    expect(rung()).toBe(1);
    expect(owed.alongside(null)).toBeNull();
  });

  it('is kept over the round that owes it when another follows, and rung when that had no pass', () => {
    const { owed, rung } = bells();
    owed.endOfRound(true);
    owed.owe();
    owed.endOfRound(true);
    expect(rung()).toBe(0);
    owed.endOfRound(true);
    expect(rung()).toBe(1);
  });

  it('is not rung on the way when each round has a pass and owes a new one', () => {
    const { owed, rung } = bells();
    for (let round = 0; round < 3; round++) {
      owed.alongside(null)?.running();
      owed.owe();
      owed.endOfRound(true);
      expect(rung()).toBe(round);
    }
  });

  it('is rung at once when nothing follows, or when the engine is about to wait', () => {
    const { owed, rung } = bells();
    owed.owe();
    owed.endOfRound(false);
    expect(rung()).toBe(1);
    owed.owe();
    owed.ring();
    owed.ring();
    expect(rung()).toBe(2);
  });

  it('is owed still when the pass fails before it is computed', () => {
    const { owed, rung } = bells();
    const fails: PassCompanion = {
      built: () => {
        throw new Error('no memory');
      },
      running: () => undefined,
    };
    owed.owe();
    expect(() => owed.alongside(fails)!.built()).toThrow('no memory');
    owed.endOfRound(true);
    owed.endOfRound(true);
    expect(rung()).toBe(1);
  });
});
