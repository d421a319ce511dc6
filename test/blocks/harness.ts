/**
 * A cache folder, a session and a drain loop in one thread: each `drain()` runs the real loop until it has nothing left.
 * Threads are tested elsewhere; here the order of things is.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MessageChannel } from 'node:worker_threads';
import { afterEach } from 'vitest';
import { type BlockUnit, publishBlock } from '../../src/engine-thread/boundary/publish.ts';
import { RestoreClient, type RestoreEvent, type RestoreOptions, type RestoreTicket } from '../../src/engine-thread/boundary/restore.ts';
import { buildImage, type ImageSpec } from '../../src/shared/blocks/image.ts';
import { BlockPaths } from '../../src/shared/blocks/paths.ts';
import type { StoreEvent } from '../../src/shared/events.ts';
import { type FileHooks, Files } from '../../src/shared/files.ts';
import type { LayerState } from '../../src/shared/layer-state.ts';
import { HubControl } from '../../src/shared/loop-control.ts';
import { Mailbox } from '../../src/shared/mailbox.ts';
import { createProcessShared } from '../../src/shared/process-shared.ts';
import { attachSession, createSessionMemory, requestKey, type Session, sumOfStates } from '../../src/shared/session/index.ts';
import { FILE_STATE, RECORD } from '../../src/shared/session/registry.ts';
import { ensureStagingRoot, requestFolder, stagedPath } from '../../src/shared/staging.ts';
import { ThreadTable } from '../../src/shared/sync/thread-table.ts';
import type { LoopMessage, LoopPost, StoreMode } from '../../src/shared/worker-init.ts';
import { BlockStore, type BlockStoreOptions } from '../../src/store-worker/block-store.ts';
import { DrainLoop } from '../../src/store-worker/drain-loop.ts';
import { enforceLimitAtStart } from '../../src/store-worker/eviction.ts';
import { chainSpecs, EXTRA_KEYS, FINGERPRINT, plain, tokensOf } from './fixtures.ts';

export const BLOCK = 16;

export interface HarnessOptions extends Partial<Pick<BlockStoreOptions, 'maxBytes' | 'otherBytes' | 'probeTtlMs'>> {
  /** null: what the disk says. */
  freeBytes?: (() => number) | null;
  dir?: string;
  mode?: StoreMode;
  hooks?: FileHooks;
  restore?: SharedArrayBuffer;
  unitCapacity?: number;
}

export interface ReadPart {
  part: string;
  start: number;
  end: number;
  layers: unknown;
}

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});

export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'tm-blocks-'));
  folders.push(folder);
  return folder;
}

export class Harness {
  readonly dir: string;
  readonly events: LoopPost[] = [];
  readonly files: Files;
  readonly session: Session;
  readonly restore: RestoreClient;
  readonly control: HubControl;
  readonly #options: HarnessOptions;
  readonly #threads = createProcessShared().threads;
  #requests = 0;

  constructor(options: HarnessOptions = {}) {
    this.#options = options;
    this.dir = options.dir ?? temporaryFolder();
    this.files = new Files(options.hooks);
    const hub = HubControl.create();
    this.control = new HubControl(hub);
    const stagingRoot = join(this.dir, '_boundary_snapshots');
    const limits = { pendingMaxBytes: 4 << 20, pageBytes: 4096, unitCapacity: options.unitCapacity ?? 64 };
    const memory = createSessionMemory({ stagingRoot, hub, number: 1, limits, ...(options.restore === undefined ? {} : { restore: options.restore }) });
    this.session = attachSession(memory, new ThreadTable(this.#threads).enter('engine', 'test', { mayBlock: true }));
    this.restore = new RestoreClient(memory.restore, this.session.storeBell);
    if ((options.mode ?? 'writer') === 'writer') {
      new Files().ensureFolder(this.dir);
      ensureStagingRoot(stagingRoot, new Files());
      new Files().ensureFolder(memory.stagingDir);
    }
  }

  #shrinkTo: number | null = null;

  /** The next loop opens the store with its usual limit and has this one from then on. */
  shrinkAfterStart(maxBytes: number): void {
    this.#shrinkTo = maxBytes;
  }

  /** A state file as the writer leaves it: on disk, and in the registry. */
  stage(requestId: string, tokenCount: number, spec: ImageSpec): void {
    const key = requestKey(requestId)!;
    this.session.ledger.capture();
    this.session.ledger.move('pending', 'written');
    const files = new Files();
    files.ensureFolder(requestFolder(this.session.memory.stagingDir, key));
    const path = stagedPath(this.session.memory.stagingDir, key, tokenCount);
    const fd = files.createExclusive(path);
    files.writeAll(fd, buildImage(spec), 0, path);
    files.close(fd);
    this.session.underRegistry('test', () => {
      const index = this.session.registry.insert(key, tokenCount, 1, 0);
      this.session.registry.set(index, RECORD.state, FILE_STATE.file);
    });
    this.session.stagedChanged();
  }

  unitOf(spec: ImageSpec, requestId: string, hasState: boolean, kv: readonly LayerState[] = spec.layers): BlockUnit {
    this.#requests += 1;
    return {
      requestNo: this.#requests,
      requestId,
      tokenCount: spec.end,
      hash: spec.blockHash,
      parent: spec.parentHash,
      tokens: spec.tokens,
      blockSize: spec.blockSize,
      fingerprint: spec.fingerprint,
      kv,
      hasState,
    };
  }

  /** Stages the state of one block and submits its unit. */
  submit(block: { kv: ImageSpec; state: ImageSpec }, requestId = 'r'): void {
    this.stage(requestId, block.kv.end, block.state);
    const outcome = publishBlock(this.session, this.unitOf(block.kv, requestId, true));
    if (outcome !== 'queued') throw new Error(`unit refused: ${outcome}`);
  }

  /** A block of a model without fixed state. */
  submitKvOnly(kv: ImageSpec): void {
    publishBlock(this.session, this.unitOf({ ...kv, layers: kv.layers.filter((layer) => layer.stored !== 'none') }, 'r', false));
  }

  /** Changes one payload byte of a stored file. */
  damage(hash: string, part: 'kv' | 'state'): void {
    const path = new BlockPaths(this.dir).block(hash, part);
    const bytes = readFileSync(path);
    bytes[bytes.length - 1]! ^= 1;
    writeFileSync(path, bytes);
  }

  /** Submits every block of a prompt, states staged; returns its parts. */
  submitChain(tokens: Uint32Array, requestId = `request ${this.#requests}`, blockSize = BLOCK): ReturnType<typeof chainSpecs> {
    const chain = chainSpecs(tokens, blockSize);
    for (const block of chain) this.submit(block, requestId);
    return chain;
  }

  /** Runs the drain loop until everything queued is done, then closes the store. */
  drain(whileOpen: (store: BlockStore) => void = () => undefined, beforeSleep: () => void = () => undefined, stop: 'drain' | 'now' = 'drain'): void {
    const { port1, port2 } = new MessageChannel();
    port1.postMessage({ type: 'attach', session: 1, memory: this.session.memory } satisfies LoopMessage);
    this.control.store.requestStop(stop);
    const self = new ThreadTable(this.#threads).enter('store-worker', 'store', { mayBlock: true });
    const idle = self.idle.bind(self);
    self.idle = () => {
      beforeSleep();
      idle();
    };
    const openStore = (emit: (event: StoreEvent) => void) => {
      const { mode = 'writer', maxBytes = 1 << 30, freeBytes = () => 2 ** 40, probeTtlMs = 0, otherBytes } = this.#options;
      const store = new BlockStore({
        files: this.files,
        cacheDir: this.dir,
        mode,
        maxBytes,
        freeBytes,
        probeTtlMs,
        emit,
        ...(otherBytes === undefined ? {} : { otherBytes }),
      });
      if (mode === 'writer') enforceLimitAtStart(store);
      if (this.#shrinkTo !== null) store.space.setMaxBytes(this.#shrinkTo);
      whileOpen(store);
      return store;
    };
    try {
      new DrainLoop({
        control: this.control.store,
        mailbox: new Mailbox<LoopMessage>(port2),
        self,
        post: (event) => this.events.push(event),
        openStore,
        backOff: { firstMs: 0, maxMs: 0 },
      }).run();
    } finally {
      self.leave();
      port1.close();
    }
    const figures = this.session.ledger.read();
    if (sumOfStates(figures) !== figures.captured) throw new Error(`the states of the ledger do not add up: ${JSON.stringify(figures)}`);
  }

  begin(tokens: Uint32Array, options: Partial<RestoreOptions> = {}): RestoreTicket {
    const needs = { kv: true, state: true };
    return this.restore.begin({
      tokens,
      maxTokens: tokens.length,
      fingerprint: FINGERPRINT,
      extraKeys: EXTRA_KEYS,
      blockSize: BLOCK,
      needs,
      deadlineMs: 10_000,
      ...options,
    });
  }

  /** Everything that a ticket gives now. */
  readAll(ticket: RestoreTicket): { end: RestoreEvent; parts: ReadPart[] } {
    const parts: ReadPart[] = [];
    for (;;) {
      const event = ticket.next(0);
      if (event.type !== 'part') return { end: event, parts };
      parts.push({ part: event.part, start: event.start, end: event.end, layers: plain(event.layers) });
      event.release();
    }
  }

  /** Asks for a prefix, lets the loop serve it and reads everything that comes. */
  lookUp(tokens: Uint32Array, options: Partial<RestoreOptions> = {}): { end: RestoreEvent; parts: ReadPart[] } {
    const ticket = this.begin(tokens, options);
    this.drain();
    return this.readAll(ticket);
  }

  /** As `lookUp`, with parts taken whenever the loop sleeps because the region is full. */
  lookUpInSteps(tokens: Uint32Array): { end: RestoreEvent; parts: ReadPart[] } {
    const ticket = this.begin(tokens);
    const parts: ReadPart[] = [];
    let end: RestoreEvent = { type: 'waiting' };
    const read = () => {
      const more = this.readAll(ticket);
      parts.push(...more.parts);
      end = more.end;
    };
    this.drain(() => undefined, read);
    read();
    return { end, parts };
  }

  of<T extends LoopPost['type']>(type: T): Extract<LoopPost, { type: T }>[] {
    return this.events.filter((event): event is Extract<LoopPost, { type: T }> => event.type === type);
  }

  /** Every file under the cache folder but the index, by path relative to it. */
  tree(): string[] {
    return (readdirSync(this.dir, { recursive: true }) as string[])
      .filter((name) => statSync(join(this.dir, name)).isFile() && !name.startsWith('index.sqlite'))
      .sort();
  }
}

export { plain, tokensOf };
