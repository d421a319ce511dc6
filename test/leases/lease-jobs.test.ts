/**
 * Leased items on their way through the real loops. Must not happen: a lease that needs a turn of its engine, pending bytes that are not given
 * back, or twice, when the engine or a reader is gone.
 */
import { describe, expect, test } from 'vitest';
import { processLocks } from '../../dist/shared/process-shared.js';
import { attachSession } from '../../dist/shared/session/session.js';
import { ThreadTable } from '../../dist/sync.js';
import { tokensOf } from '../blocks/fixtures.ts';
import { type Hub, holdAt, startHub } from '../blocks/hub.ts';
import { until } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';
import { exitOf, startWorker } from '../helpers/worker.ts';

const TOKENS = tokensOf(2 * 16);

interface Ended {
  results: string[];
  given: number;
  left: number;
  held: number;
  ledger: Record<string, unknown>;
  restored: unknown;
}

function leasingEngine(hub: Hub, args: Record<string, unknown>, limits: Record<string, unknown> = {}) {
  const memory = hub.session({ limits } as never);
  const worker = startWorker(new URL('./lease-engine.mjs', import.meta.url), {
    workerData: { shared: hub.shared, memory, cacheDir: hub.cacheDir, args: { tokens: TOKENS, width: 64, saves: 0, bytes: 0, ...args } },
    timeoutMs: 50_000,
  });
  const said = new Set<string>();
  const result = new Promise<Ended>((resolve, reject) => {
    worker.on('message', (message: string | { result: Ended }) => (typeof message === 'string' ? said.add(message) : resolve(message.result)));
    worker.once('error', reject);
    worker.once('exit', (code) => reject(new Error(`the engine thread ended with ${code}`)));
  });
  result.catch(() => undefined);
  return { memory, worker, result, said: (text: string) => until(`the engine says ${text}`, () => said.has(text)) };
}

describe('two leases that an engine gave', () => {
  test('[I93][I98] are both copied and stored while it blocks in save(), and it drops the arrays afterwards', async () => {
    const writer = holdAt('rename', '_boundary_snapshots');
    const hub = startHub(tempDir('hub'), {}, writer.faults);
    const engine = leasingEngine(hub, { saves: 2, bytes: 600_000 }, { pendingMaxBytes: 1_000_000, reserveWaitMs: 20_000 });
    const waits = () => new ThreadTable(hub.shared.threads).list().some(({ kind, wait }) => kind === 'engine' && wait?.name === 'pendingCond');
    await hub.until(() => hub.of('durable').length === 2, 'both units durable');
    await hub.until(waits, 'the engine to wait in save');
    expect(hub.of('durable').map((event) => event.tokenCount)).toEqual([16, 32]);
    Atomics.store(writer.words, 0, 2);
    const { ledger, ...ended } = await engine.result;
    expect(ended).toEqual({ results: ['queued', 'queued'], given: 2, left: 0, held: 0, restored: { type: 'done', tokenCount: 32, right: true } });
    expect(ledger).toMatchObject({ captured: 4, durable: 2, written: 2, pending: 0 });
    expect(hub.of('note')).toEqual([]);
    await hub.stop();
  });

  test('[I97] a lease that takes more than one slice: the lock is let go in between, every byte is right', async () => {
    const hub = startHub();
    // 16 rows of 140,000 numbers: more than 8 MiB.
    const engine = leasingEngine(hub, { width: 140_000 }, { pendingMaxBytes: 32 << 20 });
    const { ledger, ...ended } = await engine.result;
    expect(ended).toEqual({ results: [], given: 2, left: 0, held: 0, restored: { type: 'done', tokenCount: 32, right: true } });
    expect(ledger).toMatchObject({ captured: 2, durable: 2, pending: 0 });
    // Whoever took it last, took it for a slice.
    expect(processLocks(hub.shared).readAll(new ThreadTable(hub.shared.threads))).toMatchObject([
      { name: 'bufferAccess', held: false, timeouts: 0, site: 'lease slice' },
    ]);
    await hub.stop();
  });

  test('[I97] the arrays are let go when their bytes are copied, not when the file is written', async () => {
    const store = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), store.faults);
    const engine = leasingEngine(hub, { untilReleased: true });
    await hub.until(() => Atomics.load(store.words, 0) === 1, 'the first unit to be written');
    await engine.said('released');
    expect(Atomics.load(store.words, 0)).toBe(1);
    Atomics.store(store.words, 0, 2);
    expect((await engine.result).ledger).toMatchObject({ captured: 2, durable: 2, pending: 0 });
    await hub.stop();
  });

  test('[I96] an engine that dies: what is not copied yet ends as failed, is counted once, and its bytes come back', async () => {
    // The store worker is busy with the first unit's file: its rows are copied, the second one's are not.
    const store = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), store.faults);
    const engine = leasingEngine(hub, { die: true });
    await engine.said('leased');
    await hub.until(() => Atomics.load(store.words, 0) === 1, 'the first unit to be written');
    const ended = exitOf(engine.worker);
    await engine.worker.terminate();
    await ended;
    const table = new ThreadTable(hub.shared.threads);
    for (const thread of table.list()) if (thread.kind === 'engine') table.markDead(thread.slot);
    Atomics.store(store.words, 0, 2);
    const session = attachSession(engine.memory, table.enter('main', 'main'));
    await hub.until(() => session.itemsInFlight === 0, 'both units to end');
    expect(session.pending.held).toBe(0);
    expect(session.ledger.read()).toMatchObject({ captured: 2, durable: 1, failed: 1, pending: 0 });
    expect(hub.of('durable').map((event) => event.tokenCount)).toEqual([16]);
    await hub.stop();
  });

  test('[I96] a store worker that dies in between: the next one copies them, and each is stored once', async () => {
    const store = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), store.faults);
    const engine = leasingEngine(hub, {});
    await engine.said('leased');
    await hub.until(() => Atomics.load(store.words, 0) === 1, 'the first unit to be written');
    const killed = hub.killStore();
    Atomics.store(store.words, 0, 2);
    await killed;
    hub.startStore();
    const { ledger, ...ended } = await engine.result;
    expect(ended).toEqual({ results: [], given: 2, left: 0, held: 0, restored: { type: 'done', tokenCount: 32, right: true } });
    expect(ledger).toMatchObject({ captured: 2, durable: 2, failed: 0, pending: 0 });
    await hub.stop();
  });
});
