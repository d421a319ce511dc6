/**
 * A cache folder with its snapshot writer on a thread of its own and one session, and nothing else: no store worker takes the
 * staged files away, so what is measured is `save` and the writer. `disk` gives the writer a disk that is slow or stands still.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MessageChannel, Worker } from 'node:worker_threads';
import { processRegistry } from '../../dist/host/process-registry.js';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { loadNativeCore } from '../../dist/shared/native-core.js';
import { createSessionMemory } from '../../dist/shared/session/index.js';
import { ensureStagingRoot, openSessionStaging, stagingRootOf } from '../../dist/shared/staging.js';
import { createDisk } from './slow-disk.mjs';

export class StoreFolder {
  dir = mkdtempSync(join(tmpdir(), 'tidemark-bench-store-'));
  disk = createDisk();
  #control;
  #writer;
  #saver;
  #lock;
  #failed = null;

  /** `limits` of the session; the rest is as the product has it. */
  static async open(limits = {}) {
    const folder = new StoreFolder();
    const { shared } = processRegistry();
    const core = loadNativeCore();
    const stagingRoot = stagingRootOf(folder.dir);
    ensureStagingRoot(stagingRoot, new Files());
    const hub = HubControl.create();
    const memory = createSessionMemory({ stagingRoot, hub, number: 1, limits });
    folder.#control = new HubControl(hub);
    folder.#lock = openSessionStaging(stagingRoot, memory.id, new Files(), core);
    await folder.#startWriter({ shared, hub, stagingRoot, memory });
    folder.#saver = folder.#keep(new Worker(new URL('./save-thread.mjs', import.meta.url), { workerData: { shared, memory } }));
    return folder;
  }

  async #startWriter({ shared, hub, stagingRoot, memory }) {
    const mailbox = new MessageChannel();
    const events = new MessageChannel();
    const faults = { module: new URL('./slow-disk.mjs', import.meta.url).href, data: this.disk.words };
    const common = { shared, hub, cacheDir: this.dir, stagingRoot, mode: 'writer', maxBytes: 2 ** 40, blockSize: 256, life: 1 };
    const attached = new Promise((resolve) => {
      events.port1.on('message', ({ type }) => type === 'attached' && resolve());
    });
    this.#writer = this.#keep(
      new Worker(new URL('../../dist/snapshot-writer/main.js', import.meta.url), {
        workerData: { ...common, mailbox: mailbox.port2, events: events.port2, faults },
        transferList: [mailbox.port2, events.port2],
      }),
    );
    mailbox.port1.postMessage({ type: 'attach', session: memory.number, memory });
    this.#control.writer.bell.ring();
    await Promise.race([attached, this.#failure()]);
    events.port1.unref();
  }

  #keep(worker) {
    worker.on('error', (error) => {
      this.#failed = error;
    });
    return worker;
  }

  async #failure() {
    while (this.#failed === null) await new Promise((resolve) => setTimeout(resolve, 50).unref());
    throw this.#failed;
  }

  /** One operation of the thread that saves. */
  async call(operation, ...args) {
    const answer = new Promise((resolve) => this.#saver.once('message', resolve));
    this.#saver.postMessage({ operation, args });
    return Promise.race([answer, this.#failure()]);
  }

  async close() {
    this.disk.heal();
    await this.call('end');
    const ended = new Promise((resolve) => this.#writer.once('exit', resolve));
    this.#control.writer.requestStop('drain');
    await ended;
    await this.#saver.terminate();
    if (typeof this.#lock === 'number') loadNativeCore().flockRelease(this.#lock);
    rmSync(this.dir, { recursive: true, force: true });
  }
}
