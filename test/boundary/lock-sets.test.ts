/**
 * Which locks each operation of the boundary store takes: those of the protocol, in its order, and no other.
 * Must not happen: `bufferAccess` taken by a save, a lock added to a path on which somebody else waits.
 */
import { describe, expect, it } from 'vitest';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { type StoreFixture, startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, toLayers } from './layers.mjs';

watchLeaks();

const PROTOCOL = ['writerBusy', 'pending', 'registry', 'cancelled'];

/** Every lock that this thread acquires while `act` runs, in order of first acquisition. */
function locksOf(f: StoreFixture, act: () => unknown): string[] {
  const { self } = f.session;
  const { log } = self;
  const taken: string[] = [];
  self.log = (what, subject, site) => {
    if (what === 'acquired' || what === 'took over') taken.push(self.table.strings.read(subject));
    log.call(self, what, subject, site);
  };
  try {
    act();
  } finally {
    self.log = log;
  }
  return [...new Set(taken)];
}

describe('locks', () => {
  it('[I99] save, load, has, take and cleanup take the locks of the protocol, each only what it needs', async () => {
    const f = await startStore();
    f.gate.hold('create');
    expect(locksOf(f, () => f.store.save('r', 1, toLayers(block(1))))).toEqual(['pending', 'registry']);
    await f.gate.arrived('create');
    expect(locksOf(f, () => f.store.save('r', 1, toLayers(block(1))))).toEqual(['pending']);
    expect(locksOf(f, () => f.store.load('r', 1))).toEqual(['pending']);
    expect(locksOf(f, () => f.store.has('r', 1))).toEqual(['registry']);
    f.gate.release('create');
    await f.settled();
    expect(locksOf(f, () => f.store.load('r', 1))).toEqual(['pending', 'registry']);
    expect(locksOf(f, () => f.store.takeStagedFile('r', 1))).toEqual(['pending', 'registry']);
    f.store.save('r', 2, toLayers(block(2)));
    await f.settled();
    // Marked under the three, removed under writerBusy.
    expect(locksOf(f, () => f.store.cleanupRequest('r'))).toEqual(['pending', 'registry', 'cancelled', 'writerBusy']);
    expect(locksOf(f, () => f.store.cleanupAll())).toEqual(['pending', 'registry', 'cancelled', 'writerBusy']);
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it.each([
    ['write-through', ['pending', 'registry']],
    ['inline', ['pending', 'registry', 'writerBusy', 'cancelled']],
    ['drop', ['pending']],
  ] as const)('[I99] a save that overflows takes what its policy needs: %s', async (overflow, locks) => {
    const f = await startStore({ overflow, reserveWaitMs: 5, inlineWriteLimitMs: 10_000 });
    const others = f.session.pending.tryReserve(1024 * 1024)!;
    expect(locksOf(f, () => f.store.save('r', 1, toLayers(block(1))))).toEqual(locks);
    others.release();
    await f.settled();
    await f.close();
  });

  it('[I99] the writer and a taker take no other lock either', async () => {
    const f = await startStore({ takeWaitMs: 10_000 });
    const taker = await f.actor('store-worker', 'taker');
    for (const count of [1, 2, 3]) f.store.save('r', count, toLayers(block(count)));
    await taker.call('take', 'r', 3);
    await f.settled();
    const table = new ThreadTable(f.shared.threads);
    const acquired = table.transitions.read().filter(({ what }) => what === 'acquired');
    const ofThread = (name: string) => {
      const { slot } = table.list().find((thread) => thread.name === name)!;
      return new Set(acquired.filter((entry) => entry.slot === slot).map(({ subject }) => table.strings.read(subject)));
    };
    expect([...ofThread('boundary-snapshot-writer')].every((name) => PROTOCOL.includes(name))).toBe(true);
    expect(ofThread('boundary-snapshot-writer')).toContain('writerBusy');
    expect(ofThread('taker')).toEqual(new Set(['pending', 'registry']));
    await f.close();
  });
});
