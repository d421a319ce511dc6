/**
 * Four producers, two cleaners and one that cleans everything, on threads of their own, against a writer that is slowed and
 * fails at random: one minute in the short form, fifteen in the long one.
 *
 * In finite rounds, after each of which all must be quiet: a wake-up that is lost shows as a round that does not end, and
 * cannot be healed by later traffic. Must not happen: an orphan file or folder, a byte, page or mark that is left, a ledger
 * that does not add up or disagrees with the folder.
 */
import { describe, expect, it } from 'vitest';
import { watchLeaks } from '../helpers/leaks.ts';
import { patience } from '../helpers/patience.ts';
import { type Random, runSeed, seeded } from '../helpers/seed.ts';
import { type Actor, type StoreFixture, startStore } from './fixture.ts';
import { folderEqualsRegistry } from './folder.ts';

watchLeaks();

const POLICIES = ['write-through', 'inline', 'drop'] as const;
const SECONDS = (process.env.TIDEMARK_LONG === '1' ? 15 * 60 : 60) / POLICIES.length;
const ROUND_LIMIT_MS = 60_000;

/** What a thread does, and how many times in each round. */
const THREADS = [...Array(4).fill(['save', 60]), ...Array(2).fill(['cleanupRequest', 40]), ['cleanupAll', 6]] as [string, number][];
const FAULTY = ['mkdir', 'create', 'pwrite', 'fsync', 'rename'];
/** A file that will not go stays until its session's folder goes: removals are slow here, and do not fail. */
const SLOW = [...FAULTY, 'unlink', 'rmdir'];

describe('hammer in rounds', () => {
  it.each(POLICIES)('[E66] overflow %s', { timeout: (SECONDS + 120) * 1000 }, async (overflow) => {
    const random = seeded(`hammer in rounds, ${overflow}`);
    const f = await startStore(
      { overflow, pendingMaxBytes: 40_000, queueCapacity: 6, reserveWaitMs: 3, inlineWriteLimitMs: 10, publishGraceMs: 1 },
      {},
      (SECONDS + 110) * 1000,
    );
    const actors = await Promise.all(THREADS.map(([kind], i) => f.actor(kind === 'save' ? 'engine' : 'other', `${kind}-${i}`)));
    const total: Record<string, number> = {};
    const end = performance.now() + SECONDS * 1000;
    let rounds = 0;
    for (; performance.now() < end; rounds++) {
      for (const [outcome, count] of Object.entries(await round(f, actors, random))) total[outcome] = (total[outcome] ?? 0) + count;
      await f.settled();
      folderEqualsRegistry(f);
    }
    console.log(`hammer, overflow ${overflow}: seed ${runSeed}, ${rounds} rounds, ${JSON.stringify(total)}`);
    expect(total.lock ?? 0, 'a lock was not to be had').toBe(0);
    // Otherwise nothing was hammered.
    expect(Math.min(total.queued!, total.complete!, f.session.ledger.read().failed)).toBeGreaterThan(0);
    f.store.cleanupAll();
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });
});

/** Everybody works off a number of operations while the disk is slow and fails. */
async function round(f: StoreFixture, actors: Actor[], random: Random): Promise<Record<string, number>> {
  const never = new Int32Array(new SharedArrayBuffer(4));
  const ids = random.integer(2, 12);
  const stopFaults = faults(f, random);
  const runs = THREADS.map(([kind, times], i) => actors[i]!.call<Record<string, number>>('hammer', kind, random.integer(0, 2 ** 31), times, ids, never));
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`a round of seed ${runSeed} did not end: ${describeWaits(f)}`)), patience(ROUND_LIMIT_MS));
  });
  try {
    const came = await Promise.race([Promise.all(runs), late]);
    return came.reduce((sum, one) => {
      for (const [outcome, count] of Object.entries(one)) sum[outcome] = (sum[outcome] ?? 0) + count;
      return sum;
    }, {});
  } finally {
    clearTimeout(timer);
    stopFaults();
  }
}

/** Until stopped, every few ms: an operation that fails a few times, or one that takes as long as until the next turn. */
function faults(f: StoreFixture, random: Random): () => void {
  let held: string | null = null;
  const letGo = () => {
    if (held !== null) f.gate.release(held);
    held = null;
  };
  const timer = setInterval(() => {
    letGo();
    if (random.next() < 0.5) f.gate.fail(random.pick(FAULTY), random.pick(['ENOSPC', 'EIO', 'EACCES']), random.integer(1, 3));
    else {
      held = random.pick(SLOW);
      f.gate.hold(held, random.pick(['before', 'after']));
    }
  }, 7);
  return () => {
    clearInterval(timer);
    letGo();
    for (const operation of FAULTY) f.gate.heal(operation);
  };
}

function describeWaits(f: StoreFixture): string {
  const { table } = f.session.self;
  const locks = f.session.readLocks(table).filter(({ held, waiters }) => held || waiters > 0);
  return JSON.stringify({ threads: table.list().map(({ name, wait, activity, detail }) => [name, wait?.name ?? 'runs', activity, detail]), locks });
}
