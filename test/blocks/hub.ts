/**
 * Both loops of one cache folder as real threads, and engine threads that use them: without a keeper, so that a test decides
 * when a loop dies and when it is replaced.
 */
import { MessageChannel, type MessagePort, type Worker } from 'node:worker_threads';
import { Piscina } from 'piscina';
import { afterEach } from 'vitest';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { createSessionMemory, type SessionMemory } from '../../dist/shared/session/index.js';
import { ensureStagingRoot, stagingRootOf } from '../../dist/shared/staging.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import type { LoopMessage } from '../../dist/shared/worker-init.js';
import { dist } from '../helpers/paths.ts';
import { patience } from '../helpers/patience.ts';
import { tempDir } from '../helpers/temp.ts';
import { startWorker } from '../helpers/worker.ts';

export interface Step {
  step: string;
  [option: string]: unknown;
}

export class Hub {
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

  /** `extra`: further start data of the store worker; `writerExtra`: of the snapshot writer. */
  constructor(cacheDir: string, extra: Record<string, unknown> = {}, writerExtra: Record<string, unknown> = {}) {
    this.cacheDir = cacheDir;
    ensureStagingRoot(stagingRootOf(cacheDir), new Files());
    const writer = this.#make({ life: 1, ...writerExtra });
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

  async until(test: () => boolean, what: string, ms = patience(10_000)): Promise<void> {
    const end = performance.now() + ms;
    while (!test()) {
      if (performance.now() > end) throw new Error(`waited ${ms} ms for ${what}; events: ${JSON.stringify(this.events)}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}

const hubs: Hub[] = [];
export function startHub(cacheDir: string = tempDir('hub'), extra: Record<string, unknown> = {}, writerExtra: Record<string, unknown> = {}): Hub {
  const hub = new Hub(cacheDir, extra, writerExtra);
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

/** Words of a hold: 0 free, 1 the thread is held, 2 let go. */
export function holdAt(operation: string, match: string): { words: Int32Array; faults: Record<string, unknown> } {
  const words = new Int32Array(new SharedArrayBuffer(4));
  return { words, faults: { faults: { module: new URL('./hold.mjs', import.meta.url).toString(), data: { words, operation, match } } } };
}
