/**
 * The boundary snapshot store: states that cannot be cut by token, captured at boundaries, on their way to the SSD.
 *
 * `save`, `load` and `has` belong to the engine thread; `takeStagedFile` to the store worker; cleanup to any thread, and on the
 * engine thread it never waits. All of it is state in shared memory, so every thread makes its own store over the session.
 * Locks: pending, registry, cancelled for microseconds each, and `writerBusy` in cleanup and inline writes (design section 3).
 */

import { dirname, join } from 'node:path';
import type { CopyPlan } from '../../shared/blocks/copy-plan.ts';
import { layersFromImage, PagedBytes, parseImageHeader, verifyImage } from '../../shared/blocks/image.ts';
import { type MissReason, TidemarkError } from '../../shared/errors.ts';
import { errnoOf, Files } from '../../shared/files.ts';
import type { LayerState } from '../../shared/layer-state.ts';
import { countCancelled, forget, removeFolderIfUnused, sweep } from '../../shared/session/cleanup.ts';
import { ITEM } from '../../shared/session/item-table.ts';
import { fillLeased } from '../../shared/session/leases.ts';
import { FILE_STATE, RECORD } from '../../shared/session/registry.ts';
import { isTokenCount, type RequestKey, requestKey } from '../../shared/session/request-key.ts';
import type { Session } from '../../shared/session/session.ts';
import { type Taken, takeStaged } from '../../shared/session/staged-files.ts';
import { stagedPath } from '../../shared/staging.ts';
import type { StateCodec } from '../../shared/state-codecs.ts';
import type { Compaction } from './compaction.ts';
import type { StatePipeline } from './prepare.ts';
import { layOutSave, type PlacedSave, placeSave, type SaveOptions, type SaveResult, save } from './save.ts';
import { decodeStates } from './state-codec/decode.ts';
import { StateEncoder } from './state-codec/encode.ts';

export type { BlockIdentity, SaveOptions, SaveResult } from './save.ts';

export type LoadResult = { readonly ok: true; readonly layers: LayerState[] } | { readonly ok: false; readonly reason: MissReason; readonly detail: string };

export interface CleanupResult {
  /** False when the writer is to finish it: it was busy for longer than the limit, or this thread does not wait. */
  readonly complete: boolean;
  /** Items in flight that still carry the cancel mark. */
  readonly inFlight: number;
}

export interface StoreOptions {
  files?: Files;
  /** Whether cleanup waits for the writer. Default: on every thread but the engine's. */
  cleanupWaits?: boolean;
  /** How the float32 recurrent state is stored. Default 'fp32', as it is; the others lose precision. */
  stateCodec?: StateCodec;
  /** The model family's own compaction of append-only state, done after that of pools when `save` gets a block size. */
  compaction?: Compaction;
  /** Hears what a person should know: a codec that does not fit the state (once), a stored state that cannot be decoded. */
  warn?: (message: string) => void;
}

export class BoundarySnapshotStore {
  readonly session: Session;
  readonly #files: Files;
  readonly #cleanupWaits: boolean;
  readonly #keys = new Map<string, RequestKey>();
  readonly #pipeline: StatePipeline;
  readonly #warn: (message: string) => void;
  #fallbackTold = false;

  /** @throws a file error when a link lies where the session's staging is. */
  constructor(session: Session, options: StoreOptions = {}) {
    this.session = session;
    this.#files = options.files ?? new Files();
    this.#cleanupWaits = options.cleanupWaits ?? session.self.table.read(session.self.slot).kind !== 'engine';
    this.#warn = options.warn ?? (() => undefined);
    this.#pipeline = {
      encoder: new StateEncoder(options.stateCodec ?? 'fp32', (width) => this.#fellBack(width)),
      compaction: options.compaction ?? null,
    };
    const { stagingDir } = session.memory;
    for (const folder of [dirname(stagingDir), stagingDir]) if (this.#files.kind(folder) !== 'missing') this.#files.requireFolder(folder);
  }

  /** Stores the layers of `requestId` at `tokenCount`; they are copied when this returns. Never throws. */
  save(requestId: string, tokenCount: number, layers: readonly LayerState[] | (() => readonly LayerState[]), options: SaveOptions = {}): SaveResult {
    const key = this.#key(requestId);
    try {
      if (key === null) return { ok: false, reason: 'invalid', detail: `a request id is a non-empty string, got ${String(requestId)}` };
      this.session.oversize.sweep();
      return save(this.session, this.#files, { key, tokenCount, layers, options, pipeline: this.#pipeline });
    } finally {
      options.reservation?.release();
    }
  }

  /**
   * As `save`, in two steps: takes the place and notes the copies in `plan` while the layers are still being computed. Null
   * when there is no room at once; `save` then waits for it. Throws what is wrong with the layers.
   */
  place(requestId: string, tokenCount: number, layers: readonly LayerState[], options: SaveOptions, plan: CopyPlan): PlacedSave | null {
    const key = this.#key(requestId);
    if (key === null) return null;
    const request = { key, tokenCount, layers, options, pipeline: this.#pipeline };
    return placeSave(this.session, request, layOutSave(request), plan);
  }

  /** The layers as saved: from memory while they wait for the disk, else from the staged file, every byte verified. */
  load(requestId: string, tokenCount: number): LoadResult {
    const key = this.#key(requestId);
    if (key === null || !isTokenCount(tokenCount)) return miss('absent', 'no such boundary');
    const { session } = this;
    if (session.state !== 'open') return miss('off', 'the session is closed');
    return session.guarded(
      () => this.#load(key, tokenCount),
      (error) => miss('lock', error.message),
    );
  }

  #load(key: RequestKey, tokenCount: number): LoadResult {
    const { session } = this;
    const found = session.underPending('load', () => {
      const item = session.items.findVisible(key, tokenCount);
      if (item >= 0) {
        session.space.beginRead(item);
        return item;
      }
      return session.underRegistry('load', () => (this.#hasFile(key, tokenCount, [FILE_STATE.file]) ? 'file' : 'absent'));
    });
    if (found === 'absent') return miss('absent', 'no such boundary');
    return found === 'file' ? this.#readFile(key, tokenCount) : this.#readPending(found as number);
  }

  /** Whether `load` would find the boundary. */
  has(requestId: string, tokenCount: number): boolean {
    const key = this.#key(requestId);
    if (key === null || !isTokenCount(tokenCount) || this.session.state !== 'open') return false;
    const look = () => this.session.underRegistry('has', () => this.#hasFile(key, tokenCount, [FILE_STATE.pending, FILE_STATE.file]));
    return this.session.guarded(look, () => false);
  }

  /** Detaches the boundary's file; the caller owns the path. Waits for its write, so never on the engine thread nor in the drain loop. */
  takeStagedFile(requestId: string, tokenCount: number, options: { timeoutMs?: number } = {}): Taken {
    const key = this.#key(requestId);
    if (key === null || !isTokenCount(tokenCount)) return { ok: false, reason: 'absent', detail: 'no such boundary' };
    const timeoutMs = options.timeoutMs ?? this.session.limits.takeWaitMs;
    return this.session.guarded<Taken>(
      () => takeStaged(this.session, this.#files, key, tokenCount, timeoutMs),
      (error) => ({ ok: false, reason: 'lock', detail: error.message }),
    );
  }

  /** Forgets a request and removes its files; what the writer holds, the writer removes. */
  cleanupRequest(requestId: string): CleanupResult {
    const key = this.#key(requestId);
    if (key === null || this.session.state !== 'open') return { complete: true, inFlight: 0 };
    return this.session.guarded(
      () => {
        const { inFlight, condemned } = forget(this.session, key);
        if (inFlight === 0 && condemned === 0) return { complete: true, inFlight: 0 };
        return this.#finishCleanup(key, this.session.limits.cleanupRequestWaitMs);
      },
      () => ({ complete: false, inFlight: 0 }),
    );
  }

  /** Forgets everything; the session's folder stays, empty. */
  cleanupAll(): CleanupResult {
    if (this.session.state !== 'open') return { complete: true, inFlight: 0 };
    return this.session.guarded(
      () => {
        forget(this.session, null);
        return this.#finishCleanup(null, this.session.limits.cleanupAllWaitMs);
      },
      () => ({ complete: false, inFlight: 0 }),
    );
  }

  /** Items in flight of a cleaned request that the writer has not dealt with yet. */
  cancelledCount(requestId: string): number {
    const key = this.#key(requestId);
    return key === null ? 0 : countCancelled(this.session, key);
  }

  /** From now on everything is refused; what was accepted is still written. */
  close(): void {
    this.session.close();
  }

  #finishCleanup(key: RequestKey | null, limitMs: number): CleanupResult {
    const { session } = this;
    const { writerBusy } = session.locks;
    if (!this.#cleanupWaits || !writerBusy.acquire(limitMs, key === null ? 'cleanupAll' : 'cleanupRequest'))
      return { complete: false, inFlight: countCancelled(session, key) };
    try {
      sweep(session, this.#files, key);
      // The writer has let go of the item it held, and nothing of the request can be written again: the folder is not needed.
      if (key !== null) removeFolderIfUnused(session, this.#files, key);
      else this.#removeStrays();
    } finally {
      writerBusy.release();
    }
    return { complete: true, inFlight: countCancelled(session, key) };
  }

  /** `writerBusy` is held, so no temporary file is in use: whatever lies in folders of no known request is nobody's. */
  #removeStrays(): void {
    const { session } = this;
    const { stagingDir } = session.memory;
    this.#files.ensureFolder(stagingDir);
    for (const name of this.#files.list(stagingDir)) {
      const used = session.settleRegistry('strays', () =>
        session.registry.recordsOf(null).some((index) => dirname(this.#pathOf(index)) === join(stagingDir, name)),
      );
      if (!used) this.#files.removeTree(join(stagingDir, name));
    }
  }

  #pathOf(index: number): string {
    const { key, tokenCount } = this.session.registry.read(index);
    return stagedPath(this.session.memory.stagingDir, key, tokenCount);
  }

  /** `registry` is held. */
  #hasFile(key: RequestKey, tokenCount: number, states: readonly number[]): boolean {
    const { registry } = this.session;
    const index = registry.find(key, tokenCount);
    return index >= 0 && states.includes(registry.get(index, RECORD.state));
  }

  /** The item is pinned: it is copied with no lock held, let go, and decoded. No file operation. */
  #readPending(item: number): LoadResult {
    const { session } = this;
    let copy: Uint8Array | null;
    try {
      fillLeased(session, { item, generation: session.items.get(item, ITEM.generation) });
      const bytes = session.space.bytesOf(item);
      copy = bytes === null ? null : bytes.slice(0, session.items.getBytes(item, ITEM.byteLength));
    } finally {
      session.settlePending('load.end', () => session.space.endRead(item));
    }
    if (copy === null) return miss('busy', 'its buffer has not reached this thread');
    // The writer may be filling in checksums meanwhile; bytes that never left memory need none.
    const image = parseImageHeader(copy, copy.length, { unsealed: true });
    if (!image.ok) return image;
    const layers = layersFromImage(image, PagedBytes.of(copy));
    return layers === null ? miss('format', 'the header does not describe its tensors') : this.#decoded(layers);
  }

  #readFile(key: RequestKey, tokenCount: number): LoadResult {
    const path = stagedPath(this.session.memory.stagingDir, key, tokenCount);
    try {
      this.#files.requireFolder(dirname(path));
      const fd = this.#files.openRead(path);
      let bytes: PagedBytes;
      try {
        const content = new Uint8Array(this.#files.size(fd));
        const got = this.#files.readInto(fd, content, 0, path);
        bytes = PagedBytes.of(got === content.length ? content : content.subarray(0, got));
      } finally {
        this.#files.close(fd);
      }
      const image = verifyImage(bytes, { part: 'state', end: tokenCount });
      if (!image.ok) return image;
      return this.#decoded(layersFromImage(image, bytes)!);
    } catch (error) {
      return errnoOf(error) === 'ENOENT' ? miss('absent', `${path} is gone`) : miss('io', (error as Error).message);
    }
  }

  #decoded(layers: LayerState[]): LoadResult {
    try {
      return { ok: true, layers: decodeStates(layers) };
    } catch (error) {
      if (!(error instanceof TidemarkError) || error.details.missReason !== 'codec') throw error;
      this.session.countCodec('refused');
      this.#warn(error.message);
      return miss('codec', error.message);
    }
  }

  /** Each tensor counts; one message for the store is enough, since all layers of a model have the same width. */
  #fellBack(width: number): void {
    this.session.countCodec('fallback');
    if (this.#fallbackTold) return;
    this.#fallbackTold = true;
    const { codec } = this.#pipeline.encoder;
    this.#warn(`Recurrent state of width ${width} is stored as float32: codec ${codec} needs a width that is a power of two.`);
  }

  #key(requestId: unknown): RequestKey | null {
    if (typeof requestId !== 'string') return null;
    const known = this.#keys.get(requestId);
    if (known !== undefined) return known;
    const key = requestKey(requestId);
    if (key !== null) {
      if (this.#keys.size >= 256) this.#keys.clear();
      this.#keys.set(requestId, key);
    }
    return key;
  }
}

function miss(reason: MissReason, detail: string): LoadResult {
  return { ok: false, reason, detail };
}
