// Engine, snapshot writer and store worker as real threads; the store worker as the one task of a Piscina pool.
// Must not happen: an engine that has to turn its event loop for its store to go on; a loop that waits for the other.
import { join } from 'node:path';
import { MessageChannel, type MessagePort, type Worker } from 'node:worker_threads';
import { Piscina } from 'piscina';
import { afterEach, describe, expect, it } from 'vitest';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { createSessionMemory, type SessionMemory } from '../../dist/shared/session/index.js';
import { ensureStagingRoot, stagingRootOf } from '../../dist/shared/staging.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import type { LoopMessage } from '../../dist/shared/worker-init.js';
import { dist } from '../helpers/paths.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { startWorker } from '../helpers/worker.ts';
import { tokensOf } from './fixtures.ts';

interface Step {
  step: string;
  [option: string]: unknown;
}

class Hub {
  readonly cacheDir: string;
  readonly shared = createProcessShared();
  readonly hub = HubControl.create();
  readonly control = new HubControl(this.hub);
  readonly events: { type: string; [field: string]: unknown }[] = [];
  readonly writer: Worker;
  pool!: Piscina;
  task!: Promise<void>;
  readonly #ports = {} as { writer: MessagePort; store: MessagePort };
  readonly #memories: SessionMemory[] = [];
  #life = 0;

  constructor(cacheDir: string, extra: Record<string, unknown> = {}) {
    this.cacheDir = cacheDir;
    ensureStagingRoot(stagingRootOf(cacheDir), new Files());
    const writer = this.#make({ life: 1 });
    this.#ports.writer = writer.port;
    this.writer = startWorker(dist('snapshot-writer/main'), { workerData: writer.init, transferList: writer.transferList, timeoutMs: 60_000 });
    this.startStore(extra);
  }

  #make(extra: Record<string, unknown>) {
    const mailbox = new MessageChannel();
    const events = new MessageChannel();
    events.port1.on('message', (event) => this.events.push(event));
    events.port1.unref();
    const { shared, hub, cacheDir } = this;
    const common = { shared, hub, cacheDir, stagingRoot: stagingRootOf(cacheDir), mode: 'writer', maxBytes: 1 << 30, blockSize: 16 };
    return { init: { ...common, mailbox: mailbox.port2, events: events.port2, ...extra }, port: mailbox.port1, transferList: [mailbox.port2, events.port2] };
  }

  /** The first store worker, or one that replaces a dead one: it is told of every session again. */
  startStore(extra: Record<string, unknown> = {}): void {
    this.#life += 1;
    const store = this.#make({ ...extra, life: this.#life });
    this.#ports.store = store.port;
    const filename = dist('store-worker/main').toString();
    this.pool = new Piscina({ filename, minThreads: 1, maxThreads: 1, idleTimeout: Number.POSITIVE_INFINITY, atomics: 'disabled' });
    this.task = this.pool.run(store.init, { transferList: store.transferList }) as Promise<void>;
    for (const memory of this.#memories) this.#attach(memory, 'store');
  }

  /** Ends the store worker wherever it is. */
  async killStore(): Promise<void> {
    const ended = this.task.catch((error: Error) => error.message);
    await this.pool.destroy();
    await ended;
    // As the keeper does; with the native core the thread's own end says it.
    const threads = new ThreadTable(this.shared.threads);
    for (const thread of threads.list()) if (thread.kind === 'store-worker') threads.markDead(thread.slot);
  }

  #attach(memory: SessionMemory, loop: 'writer' | 'store'): void {
    this.#ports[loop].postMessage({ type: 'attach', session: memory.number, memory } satisfies LoopMessage);
    this.control[loop].bell.ring();
  }

  session(options: Partial<Parameters<typeof createSessionMemory>[0]> = {}): SessionMemory {
    const limits = { pendingMaxBytes: 8 << 20, pageBytes: 65536, ...options.limits };
    const memory = createSessionMemory({ stagingRoot: stagingRootOf(this.cacheDir), hub: this.hub, number: this.#memories.length + 1, ...options, limits });
    new Files().ensureFolder(memory.stagingDir);
    this.#memories.push(memory);
    this.#attach(memory, 'writer');
    this.#attach(memory, 'store');
    return memory;
  }

  /** Runs steps on a thread of their own that never turns its loop in between. */
  async engine(memory: SessionMemory, steps: Step[]): Promise<Record<string, never>[]> {
    const worker = startWorker(new URL('./engine.mjs', import.meta.url), {
      workerData: { shared: this.shared, memory, cacheDir: this.cacheDir, steps },
      timeoutMs: 30_000,
    });
    const results: Record<string, never>[] = [];
    return new Promise((resolve, reject) => {
      worker.on('message', ({ step, result }) => (step === 'end' ? resolve(results) : results.push(result)));
      worker.on('error', reject);
      worker.on('exit', (code) => reject(new Error(`the engine thread ended with ${code}`)));
    });
  }

  async stop(): Promise<void> {
    this.control.writer.requestStop('drain');
    this.control.store.requestStop('drain');
    await this.task;
    await this.pool.destroy();
  }

  of(type: string): { [field: string]: unknown }[] {
    return this.events.filter((event) => event.type === type);
  }

  async until(test: () => boolean, what: string, ms = 10_000): Promise<void> {
    const end = performance.now() + ms;
    while (!test()) {
      if (performance.now() > end) throw new Error(`waited ${ms} ms for ${what}; events: ${JSON.stringify(this.events)}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}

const hubs: Hub[] = [];
function startHub(cacheDir = tempDir('hub'), extra: Record<string, unknown> = {}): Hub {
  const hub = new Hub(cacheDir, extra);
  hubs.push(hub);
  return hub;
}
afterEach(async () => {
  for (const hub of hubs.splice(0)) {
    hub.control.writer.requestStop('now');
    hub.control.store.requestStop('now');
    await hub.killStore();
  }
});

const TOKENS = tokensOf(5 * 16 + 3);

/** Words of a hold: 0 free, 1 the thread is held, 2 let go. */
function holdAt(operation: string, match: string): { words: Int32Array; faults: Record<string, unknown> } {
  const words = new Int32Array(new SharedArrayBuffer(4));
  return { words, faults: { faults: { module: new URL('./hold.mjs', import.meta.url).toString(), data: { words, operation, match } } } };
}

describe('a store worker that dies', () => {
  it.each([
    ['create', '/blocks/'],
    ['fsync', '/blocks/'],
    ['rename', '_boundary_snapshots'],
    ['rename', '/blocks/'],
    ['syncFolder', '/blocks/'],
  ])('R18: killed at %s of %s, its successor ends what it had begun', async (operation, match) => {
    const hold = holdAt(operation, match);
    const hub = startHub(tempDir('hub'), hold.faults);
    const memory = hub.session();
    const engine = hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'settle' },
      { step: 'restore', tokens: TOKENS },
    ]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    await hub.killStore();
    hub.startStore();
    const [, settled, restored] = await engine;
    expect(settled).toMatchObject({ inFlight: 0, held: 0, ledger: { captured: 6, durable: 6 } });
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
    expect(listTree(hub.cacheDir).filter((name) => name.endsWith('.tmp') || (name.includes('_promote/') && name.endsWith('s')))).toEqual([]);
  });

  it('a restore that it was serving ends as a miss and the next one works', async () => {
    const hub = startHub();
    const memory = hub.session();
    await hub.engine(memory, [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }, { step: 'settle' }]);
    await hub.killStore();
    const hold = holdAt('pread', '/blocks/');
    hub.startStore(hold.faults);
    const engine = hub.engine(memory, [
      { step: 'restore', tokens: TOKENS },
      { step: 'restore', tokens: TOKENS },
    ]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    await hub.killStore();
    hub.startStore();
    const [first, second] = await engine;
    expect(first).toMatchObject({ type: 'miss', reason: 'worker' });
    expect(second).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });
});

describe('a disk that hangs', () => {
  it('75: the engine goes on; a restore that cannot be served ends at its deadline, and works afterwards', async () => {
    const hold = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), hold.faults);
    const memory = hub.session();
    const [stored] = await hub.engine(memory, [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    const [missed] = await hub.engine(memory, [{ step: 'restore', tokens: TOKENS, deadlineMs: 300 }]);
    expect(new Set(stored as unknown as string[])).toEqual(new Set(['saved', 'queued']));
    expect(missed).toMatchObject({ type: 'miss', reason: 'deadline' });
    Atomics.store(hold.words, 0, 2);
    const [again] = await hub.engine(memory, [{ step: 'restore', tokens: TOKENS }]);
    expect(again).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });

  it('diagnose can name the path: the thread’s activity says which operation it is in', async () => {
    const hold = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), hold.faults);
    void hub.engine(hub.session(), [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    const thread = new ThreadTable(hub.shared.threads).list().find((info) => info.kind === 'store-worker')!;
    expect(thread.activity).toBe('file');
    expect(thread.detail).toMatch(/^fsync .*blocks/);
    Atomics.store(hold.words, 0, 2);
    await hub.stop();
  });
});

describe('store and restore over real threads', () => {
  it('58, 70, 93: what an engine stores becomes durable and comes back, without a turn of its loop', async () => {
    const hub = startHub();
    const memory = hub.session();
    const [stored, settled, restored, known] = await hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'settle' },
      { step: 'restore', tokens: TOKENS },
      { step: 'lookUp', tokens: TOKENS },
    ]);
    expect(new Set(stored as unknown as string[])).toEqual(new Set(['saved', 'queued']));
    expect(settled).toMatchObject({ inFlight: 0, held: 0, ledger: { captured: 6, durable: 6 } });
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    expect(known).toMatchObject({ known: true, tokenCount: TOKENS.length });
    await hub.until(() => hub.of('durable').length === 6, 'six durable events');
    expect(hub.of('durable').map((event) => event.tokenCount)).toEqual([16, 32, 48, 64, 80, 83]);
    await hub.stop();
    expect(listTree(hub.cacheDir).filter((name) => name.includes('.tmp'))).toEqual([]);
  });

  it('119: a restore right behind the store of the same prompt sees all of it', async () => {
    const hub = startHub();
    const [, restored] = await hub.engine(hub.session(), [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'restore', tokens: TOKENS },
    ]);
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });

  it('another session and another life of the store find it; sessions are served side by side', async () => {
    const hub = startHub();
    await hub.engine(hub.session(), [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }, { step: 'settle' }]);
    const other = tokensOf(40, 9);
    const both = await Promise.all([
      hub.engine(hub.session(), [{ step: 'restore', tokens: TOKENS }, { step: 'store', tokens: other, requestId: 'b', requestNo: 1 }, { step: 'settle' }]),
      hub.engine(hub.session(), [{ step: 'restore', tokens: TOKENS, maxTokens: 50 }]),
    ]);
    expect(both.map(([first]) => first)).toMatchObject([
      { tokenCount: TOKENS.length, right: true },
      { tokenCount: 48, right: true },
    ]);
    await hub.stop();
    const again = startHub(hub.cacheDir);
    const [first, second] = await again.engine(again.session(), [
      { step: 'restore', tokens: TOKENS },
      { step: 'restore', tokens: other },
    ]);
    expect([first, second]).toMatchObject([
      { tokenCount: TOKENS.length, right: true },
      { tokenCount: 40, right: true },
    ]);
    expect(again.of('note')).toEqual([]);
    await again.stop();
  });

  it('parts larger than half the region, and larger than all of it, come through while the engine blocks', async () => {
    const hub = startHub();
    const { createRestoreMemory } = await import('../../dist/shared/blocks/restore-channel.js');
    const memory = hub.session({ restore: createRestoreMemory(300_000, 2 << 20) });
    const [, , restored] = await hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1, width: 2048 },
      { step: 'settle' },
      { step: 'restore', tokens: TOKENS, width: 2048 },
    ]);
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });

  it('a request that is cleaned up while its blocks are on their way leaves nothing behind', async () => {
    const hub = startHub();
    const memory = hub.session();
    const [, , settled] = await hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'cleanup', requestId: 'a' },
      { step: 'settle' },
    ]);
    expect(settled).toMatchObject({ inFlight: 0, held: 0 });
    await hub.stop();
    const staged = listTree(join(hub.cacheDir, '_boundary_snapshots')).filter((name) => name.endsWith('.safetensors'));
    expect(staged).toEqual([]);
  });
});
