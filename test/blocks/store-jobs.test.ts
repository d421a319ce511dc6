// What the store worker does beside engines that wait. Must not happen: a unit that needs a turn of its engine's loop, two
// workers on one index, a stuck process that cannot say who waits for whom.
import { describe, expect, it } from 'vitest';
import { processLocks } from '../../dist/shared/process-shared.js';
import { attachSession } from '../../dist/shared/session/session.js';
import { diagnose, ThreadTable } from '../../dist/sync.js';
import { listTree, tempDir } from '../helpers/temp.ts';
import { startWorker } from '../helpers/worker.ts';
import { tokensOf } from './fixtures.ts';
import { type Hub, holdAt, startHub } from './hub.ts';

const TOKENS = tokensOf(2 * 16);
const SAVE_BYTES = 600_000;

/** An engine that has queued two units and then waits in `save` for the cap, because the writer is held. */
async function blockedEngine(hub: Hub, reserveWaitMs = 20_000) {
  const memory = hub.session({ limits: { pendingMaxBytes: 1_000_000, reserveWaitMs } } as never);
  // Both loops have looked into the session's rings and sleep: from now on only a bell wakes them.
  await hub.until(() => hub.of('attached').length === 2, 'both loops to serve the session');
  await new Promise((resolve) => setTimeout(resolve, 30));
  const steps = hub.engine(memory, [{ step: 'unitsThenSave', tokens: TOKENS, requestId: 'r', requestNo: 1, bytes: SAVE_BYTES, saves: 2 }, { step: 'settle' }]);
  steps.catch(() => undefined); // a test that fails first must not leave it behind
  const waits = () => new ThreadTable(hub.shared.threads).list().some(({ kind, wait }) => kind === 'engine' && wait?.name === 'pendingCond');
  return { memory, steps, inSave: () => hub.until(waits, 'the engine to wait in save') };
}

describe('an engine that blocks in save()', () => {
  it('[I93][I98] two units that it queued before are both stored while it waits', async () => {
    const writer = holdAt('rename', '_boundary_snapshots');
    const hub = startHub(tempDir('hub'), {}, writer.faults);
    const engine = await blockedEngine(hub);
    await engine.inSave();
    await hub.until(() => hub.of('durable').length === 2, 'both units durable');
    expect(hub.of('durable').map((event) => event.tokenCount)).toEqual([16, 32]);
    // It still waits: nothing of this needed it.
    await engine.inSave();
    Atomics.store(writer.words, 0, 2);
    const [results, settled] = await engine.steps;
    expect(results).toEqual(['queued', 'queued', { ok: true, how: 'queued' }, { ok: true, how: 'queued' }]);
    expect(settled).toMatchObject({ inFlight: 0, held: 0, ledger: { captured: 4, durable: 2, written: 2 } });
    await hub.stop();
  });
});

describe('one worker', () => {
  it('[I93] two engines that store the same blocks at the same time: one worker, each block once, both are told', async () => {
    const hub = startHub();
    const tokens = tokensOf(6 * 16);
    const store = (requestNo: number) => hub.engine(hub.session(), [{ step: 'store', tokens, requestId: `r${requestNo}`, requestNo }, { step: 'settle' }]);
    const [a, b] = await Promise.all([store(1), store(2)]);
    for (const [, settled] of [a, b]) expect(settled).toMatchObject({ inFlight: 0, ledger: { captured: 6, durable: 6, failed: 0 } });
    await hub.until(() => hub.of('durable').length === 12, 'twelve durable events');
    expect(new ThreadTable(hub.shared.threads).list().filter(({ kind }) => kind === 'store-worker')).toHaveLength(1);
    await hub.stop();
    expect(listTree(hub.cacheDir).filter((name) => name.startsWith('blocks/') && name.endsWith('.safetensors'))).toHaveLength(12);
    expect(hub.of('note')).toEqual([]);
  });
});

describe('diagnose() while every other thread is stuck', () => {
  it('[I103] tells each lock’s holder, site and time, what each loop sits in, and what each waiter waits for', async () => {
    const [writer, store] = [holdAt('fsync', '_boundary_snapshots'), holdAt('fsync', '/blocks/')];
    const hub = startHub(tempDir('hub'), store.faults, writer.faults);
    const table = new ThreadTable(hub.shared.threads);
    const main = table.enter('main', 'main');
    const engine = await blockedEngine(hub);
    await hub.until(() => Atomics.load(writer.words, 0) === 1 && Atomics.load(store.words, 0) === 1, 'both loops to be held');
    await engine.inSave();
    const cleaner = startWorker(new URL('../boundary/actor.mjs', import.meta.url), {
      workerData: { shared: hub.shared, memory: engine.memory, kind: 'other', name: 'cleaner', gate: null },
    });
    cleaner.postMessage({ id: 1, operation: 'cleanupRequest', args: ['r'] });
    await hub.until(() => table.list().some(({ name, wait }) => name === 'cleaner' && wait?.name === 'writerBusy'), 'the cleaner to wait');

    const session = attachSession(engine.memory, main);
    const { threads, locks, cycles, text } = diagnose(table, [processLocks(hub.shared), session]);
    const thread = (kind: string) => threads.find((entry) => entry.kind === kind)!;
    expect(thread('snapshot-writer')).toMatchObject({ alive: true, activity: 'file', detail: expect.stringContaining('_boundary_snapshots') });
    expect(thread('store-worker')).toMatchObject({ alive: true, activity: 'file', detail: expect.stringMatching(/^fsync .*blocks/) });
    expect(thread('engine')).toMatchObject({ alive: true, activity: 'condition', detail: expect.stringMatching(/^pendingCond at pending bytes/) });
    expect(thread('other')).toMatchObject({
      activity: 'lock',
      detail: expect.stringMatching(/^writerBusy at cleanupRequest, held by boundary-snapshot-writer/),
    });
    const lock = (name: string) => locks.find((entry) => entry.name === name)!;
    expect(lock('writerBusy')).toMatchObject({ held: true, owner: 'boundary-snapshot-writer', site: 'writer', waiters: 1 });
    expect(lock('writerBusy').sinceMs).toBeGreaterThan(0);
    for (const name of ['pending', 'registry', 'cancelled', 'bufferAccess']) expect(lock(name), name).toMatchObject({ held: false, owner: null });
    expect(lock('pendingCond')).toMatchObject({ waiters: 1 });
    expect(cycles).toEqual([]);
    expect(text).toMatch(/writerBusy: held for .* by boundary-snapshot-writer at writer, 1 waiting/);

    Atomics.store(store.words, 0, 2);
    Atomics.store(writer.words, 0, 2);
    await engine.steps;
    await cleaner.terminate();
    main.leave();
    await hub.stop();
  });

  it('[I103] an idle worker is idle; one inside bufferAccess is named as its holder', async () => {
    const hub = startHub();
    const table = new ThreadTable(hub.shared.threads);
    const idle = () => diagnose(table, [processLocks(hub.shared)]).threads.find(({ kind }) => kind === 'store-worker')?.activity === 'idle';
    await hub.until(idle, 'the store worker to be idle');
    const reader = table.enter('store-worker', 'reader', { mayBlock: true });
    const lock = processLocks(hub.shared).reentrant('bufferAccess', reader);
    reader.activity('job', 'copy of a lease');
    lock.acquire(1000, 'lease slice');
    const { threads, locks } = diagnose(table, [processLocks(hub.shared)]);
    expect(locks).toMatchObject([{ name: 'bufferAccess', held: true, owner: 'reader', site: 'lease slice' }]);
    expect(threads.find(({ name }) => name === 'reader')).toMatchObject({ activity: 'job', detail: 'copy of a lease' });
    lock.release();
    reader.leave();
    await hub.stop();
  });
});
