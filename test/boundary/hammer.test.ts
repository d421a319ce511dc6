/**
 * Savers, cleaners, a taker and a reader at once, the writer slowed and failing at random. In finite rounds: a wake-up that is
 * lost must show as a wait, not be healed by later traffic.
 * Must not happen: an orphan file or folder, a byte or mark left, a state answered for another, a ledger that disagrees with the folder.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { watchLeaks } from '../helpers/leaks.ts';
import { runSeed, seeded } from '../helpers/seed.ts';
import { type StoreFixture, startStore } from './fixture.ts';
import { folderEqualsRegistry } from './folder.ts';

watchLeaks();

async function hammer(f: StoreFixture, kinds: string[], ids: number, ms: number, seed: number): Promise<Record<string, number>[]> {
  const stop = new Int32Array(new SharedArrayBuffer(4));
  const actors = await Promise.all(kinds.map((kind, i) => f.actor(kind === 'save' ? 'engine' : 'other', `${kind}-${i}`)));
  const runs = actors.map((actor, i) => actor.call<Record<string, number>>('hammer', kinds[i], seed + i, 1_000_000, ids, stop));
  await new Promise((resolve) => setTimeout(resolve, ms));
  Atomics.store(stop, 0, 1);
  const came = await Promise.all(runs);
  if (process.env.TIDEMARK_VERBOSE === '1') console.log(`seed ${seed}`, came);
  for (const actor of actors) await actor.worker.terminate();
  return came;
}

describe('hammer', () => {
  it('[E66] when all is quiet every file has a record, no temporary file remains, and the ledger equals a walk over the folder', async () => {
    const f = await startStore({ pendingMaxBytes: 60_000, queueCapacity: 16, reserveWaitMs: 5, inlineWriteLimitMs: 20, publishGraceMs: 2 });
    const came = await hammer(f, ['save', 'save', ...Array(6).fill('cleanupRequest'), 'cleanupAll'], 200, 1500, runSeed);
    await f.settled();
    folderEqualsRegistry(f);
    expect(f.session.ledger.read().written).toBe(f.session.registry.live);
    expect(came[0]!.queued).toBeGreaterThan(0);
    f.store.cleanupAll();
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[E66] also with a taker, a reader, write-through and inline, and a disk that fails at random', async () => {
    for (const overflow of ['write-through', 'inline'] as const) {
      const random = seeded(`hammer ${overflow}`);
      const f = await startStore({ overflow, pendingMaxBytes: 30_000, queueCapacity: 4, reserveWaitMs: 2, inlineWriteLimitMs: 10, publishGraceMs: 1 });
      const failing = setInterval(() => {
        f.gate.fail(random.pick(['mkdir', 'create', 'pwrite', 'fsync', 'rename']), random.pick(['ENOSPC', 'EIO', 'EACCES']), random.integer(1, 3));
      }, 10);
      const came = await hammer(f, ['save', 'save', 'cleanupRequest', 'cleanupAll', 'take', 'load'], 6, 1200, runSeed + 100);
      clearInterval(failing);
      for (const operation of ['mkdir', 'create', 'pwrite', 'fsync', 'rename']) f.gate.heal(operation);
      await f.settled();
      folderEqualsRegistry(f);
      expect(came[5]!.WRONG ?? 0).toBe(0);
      expect(came[4]!.taken ?? 0).toBe(readdirSync(join(f.stagingRoot, '_promote')).length);
      expect(came[0]!.lock ?? 0).toBe(0);
      await f.close();
    }
  });
});
