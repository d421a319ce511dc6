/**
 * The engine thread's side of the cache: what a request gets from it (a restore attempt) and gives to it (a recorder),
 * over this engine's session memory.
 *
 * Engine thread only. Nothing here waits for the disk; the only waits are those of the session (room for bytes, the
 * restore region), each with its limit.
 */

import { CopyPlan } from '../shared/blocks/copy-plan.ts';
import { ChainHasher, type ChainIdentity } from '../shared/blocks/identity.ts';
import type { EngineStoreInit, WireRequest } from '../shared/engine-protocol.ts';
import type { DropReason, ErrorCode } from '../shared/errors.ts';
import { errnoOf } from '../shared/files.ts';
import type { LayerState } from '../shared/layer-state.ts';
import { HubControl } from '../shared/loop-control.ts';
import { attachSession, type LeaseAccess, type PlacedUnit, reserveUnit, type Session } from '../shared/session/index.ts';
import type { ThreadHandle } from '../shared/sync/thread-table.ts';
import { LeaseBook, mayLease, tensorBytesOf } from './boundary/lease-book.ts';
import { IndexReader } from './boundary/lookup.ts';
import { OwedBell } from './boundary/owed-bell.ts';
import { type BlockUnit, placeBlock, publishBlock, unitBytes, unitsInFlight } from './boundary/publish.ts';
import { type BlockSink, BoundaryRecorder, type CapturedBlock, type PassCompanion, type PreparedBlock } from './boundary/recorder.ts';
import { RestoreClient } from './boundary/restore.ts';
import { RestoreAttempt } from './boundary/restore-attempt.ts';
import { RestoreBuilder } from './boundary/restore-builder.ts';
import { dropReasonOf, type PlacedSave, type SaveOptions } from './boundary/save.ts';
import { BoundarySnapshotStore } from './boundary/snapshot-store.ts';
import type { EngineModel } from './engine-model.ts';
import { nativeLeases } from './mlx/leases.ts';

/**
 * From how many bytes on a state, or a block's rows of a finished sequence, is leased to its writer. Below, a copy costs about as much
 * (docs/benchmarks.md, 'streams'). TIDEMARK_LEASE_FROM_BYTES sets another limit.
 */
const LEASE_FROM_BYTES = 2 * 1024 * 1024;

function leaseFromBytes(): number {
  const given = process.env.TIDEMARK_LEASE_FROM_BYTES ?? '';
  return /^\d+$/.test(given) ? Number(given) : LEASE_FROM_BYTES;
}

const NO_DEADLINE_KNOWN_MS = 10_000;
/** Prefill speed assumed before this engine has measured its own; low, so that 'auto' does not give up too early. */
const ASSUMED_TOKENS_PER_MS = 0.2;

export interface StoreReports {
  warn(message: string): void;
  /** Nothing will be stored: told once. What is stored is still restored. */
  degraded(code: ErrorCode, message: string, details: Record<string, unknown>): void;
}

export class EngineStoreClient {
  readonly #self: ThreadHandle;
  #init: EngineStoreInit;
  #session!: Session;
  /** null when nothing is stored. */
  #snapshots!: BoundarySnapshotStore | null;
  #restores!: RestoreClient;
  #loops!: HubControl;
  /** How far the disk's loops were when a wait for them was last in vain: until they get further, nobody waits again. */
  #waitedInVainAt: number | null = null;
  /** The same for restores: where the store worker stood, from beginning to end of one that passed its deadline. */
  #restoredInVainAt: string | null = null;
  #writerBell!: OwedBell;
  readonly #reader: IndexReader;
  readonly #model: EngineModel;
  readonly #identity: ChainIdentity;
  readonly #hasher: ChainHasher;
  readonly #sink: BlockSink;
  readonly #reports: StoreReports;
  readonly #leases: LeaseAccess | null;
  readonly #given = new LeaseBook(nativeLeases);
  readonly #leaseFromBytes: number;

  /** @param leases without it bytes are always copied by this thread */
  constructor(
    init: EngineStoreInit,
    self: ThreadHandle,
    model: EngineModel,
    numerics: readonly string[],
    reports: StoreReports,
    leases: LeaseAccess | null = null,
  ) {
    this.#reports = reports;
    this.#leases = leases;
    this.#leaseFromBytes = leases === null ? Number.POSITIVE_INFINITY : (init.leaseFromBytes ?? leaseFromBytes());
    this.#self = self;
    this.#init = init;
    this.#model = model;
    this.#attach();
    this.#reader = new IndexReader(
      init.cacheDir,
      () => this.#restores.indexUsable,
      () => unitsInFlight(this.#session) === 0,
    );
    this.#identity = {
      fingerprint: model.fingerprint,
      extraKeys: extraKeys(init, model, numerics),
    };
    this.#hasher = new ChainHasher(this.#identity);
    this.#sink = {
      prepare: (block) => this.#prepare(block),
      put: (block, mayWait, prepared) => this.#put(block, mayWait, prepared as Prepared | null),
      has: (hash, withState) => this.#reader.has(hash, withState),
      dropped: (reason, detail) => {
        this.#count(reason);
        if (detail !== undefined) reports.warn(`A boundary could not be stored (${reason}): ${detail}`);
      },
      requestEnded: (requestId) => {
        this.#snapshots?.cleanupRequest(requestId);
      },
    };
  }

  get mayWrite(): boolean {
    return this.#snapshots !== null;
  }

  #attach(): void {
    const { memory, hubPort, mode } = this.#init;
    const loops = new HubControl(memory.hub);
    this.#loops = loops;
    const session = attachSession(memory, this.#self, { post: (mail) => hubPort.postMessage(mail) });
    session.leases = this.#leases;
    this.#session = session;
    this.#writerBell = new OwedBell(session.writerBell);
    this.#snapshots = mode === 'writer' ? this.#openSnapshots(session) : null;
    this.#restores = new RestoreClient(memory.restore, session.storeBell, {
      // A session that was lost is served by nobody.
      workerIsAlive: () => loops.store.state !== 'returned' && session.state !== 'failed',
    });
  }

  /** A link or a file where staging should be is a fault of the folder, and none of these keeps an engine from answering. */
  #openSnapshots(session: Session): BoundarySnapshotStore | null {
    const { compaction } = this.#model.causal;
    const { cacheDir, stateCodec } = this.#init;
    const warn = (message: string) => this.#reports.warn(message);
    try {
      return new BoundarySnapshotStore(session, { stateCodec, warn, ...(compaction === undefined ? {} : { compaction }) });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      const message = `Nothing can be stored in the cache folder '${cacheDir}' (${why}). What is stored there is still used; answers are not affected.`;
      this.#reports.degraded('CACHE_DIR_UNUSABLE', message, { path: cacheDir, errno: errnoOf(error) });
      return null;
    }
  }

  /** At each step: lets go of arrays that others have copied. How many leases are still open. */
  reapLeases(): number {
    this.#given.reap();
    return this.#given.count;
  }

  /** Parts of boundaries that were leased instead of copied. */
  get leasesGiven(): number {
    return this.#given.total;
  }

  /** The session was lost. Recorders and restores of running requests go on with the new one; what was under way is a miss or lost. */
  renew(init: EngineStoreInit): void {
    this.#session.close();
    this.#init.hubPort.close();
    this.#init = init;
    this.#attach();
  }

  /** What goes along with the next pass. */
  alongside(beside: PassCompanion | null): PassCompanion | null {
    return this.#writerBell.alongside(beside);
  }

  /** The scheduler's round is over; `more`: another one follows at once. */
  endOfRound(more: boolean): void {
    this.#writerBell.endOfRound(more);
  }

  /** `asComputed`: boundaries are stored when they are passed, whatever the request says: later, state of another step would be stored. */
  recorder(request: WireRequest, promptTokens: number, asComputed = false): BoundaryRecorder {
    return new BoundaryRecorder({
      sink: this.#sink,
      hasher: this.#hasher,
      stream: this.#model.stream,
      blockSize: this.#init.blockSize,
      persist: request.persist === 'finish' && !asComputed ? 'finish' : 'boundary',
      promptTokens,
      requestId: stagingId(request),
      requestNo: request.requestNo,
      hasFixedState: this.#model.hasFixedState,
    });
  }

  /** Everything but the prompt's last token may come from the cache: its logits are needed. */
  restore(request: WireRequest, promptTokens: Int32Array): RestoreAttempt | null {
    const maxTokens = Math.min(promptTokens.length - 1, request.probe?.restoreLimit ?? Number.MAX_SAFE_INTEGER);
    if (maxTokens < 1) return null;
    const wanted = {
      ...this.#identity,
      tokens: Uint32Array.from(promptTokens),
      maxTokens,
      blockSize: this.#init.blockSize,
      needs: { kv: this.#model.hasSliceableState, state: this.#model.hasFixedState },
    };
    const deadlineMs = this.#deadline(maxTokens);
    let begunAt = '';
    return new RestoreAttempt({
      lookup: () => {
        // A store worker that sits in a system call costs one request its deadline, not each.
        if (this.#restoredInVainAt === this.#storeStands)
          return { reason: 'deadline', detail: 'the store worker has done nothing since a restore passed its deadline' };
        const found = this.#reader.longestChain(wanted);
        if (!found.known) return null;
        return found.tokenCount > 0 ? { tokenCount: found.tokenCount } : { reason: found.reason ?? 'absent', detail: found.detail };
      },
      start: () => {
        begunAt = this.#storeStands;
        return this.#restores.begin({ ...wanted, deadlineMs });
      },
      builder: () => new RestoreBuilder(this.#model),
      deadlineMs,
      late: () => {
        if (this.#storeStands === begunAt) this.#restoredInVainAt = begunAt;
      },
    });
  }

  /** From now on the session refuses; what was accepted is still written by the others. */
  close(): void {
    try {
      this.#given.settle();
    } catch (error) {
      this.#reports.warn(`What was still to be copied of the last boundaries is not stored: ${error instanceof Error ? error.message : String(error)}`);
    }
    this.#session.close();
    this.#reader.close();
    this.#init.hubPort.close();
  }

  #prepare(block: CapturedBlock): Prepared | null {
    const plan = new CopyPlan();
    let unit: PlacedUnit | null = null;
    this.#given.reap();
    const leasesState = block.state !== null && this.#isLeased(block.state, block.finished);
    // Rows of a cache that goes on growing never are.
    const leasesRows = this.#isLeased(block.kv, block.finished) && this.#given.mayPin(block.requestNo);
    // A finished block comes here for that alone.
    if (block.finished && !leasesState && !leasesRows) return null;
    const statePlan = leasesState || leasesRows ? new CopyPlan() : plan;
    try {
      // Room for the rows first: a state without them would be written for nothing.
      unit = placeBlock(this.#session, this.#unitOf(block), plan);
      if (unit === null) return null;
      const copies = { rows: plan, rowsOf: block.requestNo, leasesRows, state: statePlan, leasesState };
      if (block.state === null) return new Prepared(copies, unit, null);
      const state = this.#snapshots!.place(block.requestId, block.end, block.state, this.#saveOptions(block), statePlan);
      if (state !== null) return new Prepared(copies, unit, state);
    } catch {
      // `put` tries again, and says what is wrong.
    }
    unit?.release();
    return null;
  }

  /** Whatever goes wrong in the store costs this boundary, never the answer. */
  #put(block: CapturedBlock, mayWait: boolean, prepared: Prepared | null): 'accepted' | DropReason {
    // A disk that stands still costs one wait, not one for each boundary of a long prompt.
    const patient = mayWait && this.#waitedInVainAt !== this.#progress;
    try {
      if (prepared !== null) return this.#finish(prepared);
      const outcome = this.#handOver(block, patient);
      if (patient) this.#waitedInVainAt = outcome === 'backpressure' ? this.#progress : null;
      return outcome;
    } catch (error) {
      this.#reports.warn(`The boundary at token ${block.end} could not be stored: ${error instanceof Error ? error.message : String(error)}`);
      return 'lock';
    }
  }

  /** The block's place is taken: what is left is one copy, and saying so. */
  #finish(prepared: Prepared): 'accepted' | DropReason {
    const { unit, state } = prepared;
    const session = this.#session;
    try {
      this.#copy(prepared);
    } catch (error) {
      // A state codec may refuse values.
      const reason = dropReasonOf(error);
      this.#sink.dropped(reason, error instanceof Error ? error.message : String(error));
      return reason;
    }
    if (state === null) {
      const queued = unit.queue();
      if (queued === 'queued') session.storeBell.ring();
      return queued === 'queued' ? 'accepted' : queued;
    }
    const stagedBefore = session.stagedSequence;
    const unitOutcome = { is: 'closed' as 'queued' | DropReason };
    const saved = state.publish(() => {
      unitOutcome.is = unit.queueUnderPending();
    });
    const queued = unitOutcome.is;
    // One thread is woken, and beside the next pass: the store worker cannot do the unit before its state has left the writer's
    // queue, and that rings its bell. It has not left it while the sequence is the same.
    const inQueue = saved.ok && saved.how === 'queued';
    if (inQueue) this.#writerBell.owe();
    if (queued === 'queued' && (!inQueue || session.stagedSequence !== stagedBefore)) session.storeBell.ring();
    if (!saved.ok) return saved.reason === 'failed' ? 'backpressure' : saved.reason;
    if (queued !== 'queued') return queued;
    prepared.used = true;
    return 'accepted';
  }

  /** Changes with each thing that the store worker ends, and with each new life of it. */
  get #storeStands(): string {
    return `${this.#loops.store.life}:${this.#loops.store.progress}`;
  }

  #isLeased(layers: readonly LayerState[], finished: boolean): boolean {
    return tensorBytesOf(layers) >= this.#leaseFromBytes && mayLease(layers, finished);
  }

  /** Copies what is not leased. */
  #copy({ copies, unit, state }: Prepared): void {
    const { rows, rowsOf, leasesRows, state: stateCopies, leasesState } = copies;
    if (!(leasesRows && this.#given.give(this.#session, unit.ref, rows, rowsOf))) rows.run();
    if (state === null || stateCopies === rows) return;
    if (!(leasesState && this.#given.give(this.#session, state.ref, stateCopies, null))) stateCopies.run();
  }

  get #progress(): number {
    return this.#loops.writer.progress + this.#loops.store.progress;
  }

  #unitOf(block: CapturedBlock): BlockUnit {
    const { requestId, requestNo, end, hash, parent, tokens, kv, state } = block;
    const { fingerprint } = this.#identity;
    return { requestId, requestNo, tokenCount: end, hash, parent, tokens, blockSize: this.#init.blockSize, fingerprint, kv, hasState: state !== null };
  }

  #saveOptions({ hash, parent, tokens, requestNo }: CapturedBlock): SaveOptions {
    return { blockSize: this.#init.blockSize, block: { hash, parent, tokens, fingerprint: this.#identity.fingerprint }, requestNo };
  }

  #handOver(block: CapturedBlock, mayWait: boolean): 'accepted' | DropReason {
    // It may wait for room that only a writer makes who knows of all its work.
    this.#writerBell.ring();
    const unit = this.#unitOf(block);
    // Room for the rows first, as in #prepare.
    const reservation = reserveUnit(this.#session, unitBytes(unit), mayWait ? this.#session.limits.reserveWaitMs : 0);
    if (reservation === null) {
      // Rows alone, where a restore needs a state too, are no boundary.
      if (block.state !== null || !this.#model.hasFixedState) this.#count('backpressure');
      return 'backpressure';
    }
    try {
      if (block.state !== null) {
        const options = { ...this.#saveOptions(block), mayWait, onCopied: block.stateCopied };
        const saved = this.#snapshots!.save(block.requestId, block.end, block.state, options);
        if (!saved.ok) return saved.reason === 'failed' ? 'backpressure' : saved.reason;
      }
      const queued = publishBlock(this.#session, unit, reservation);
      return queued === 'queued' ? 'accepted' : queued;
    } finally {
      reservation.release();
    }
  }

  #count(reason: DropReason): void {
    this.#session.ledger.capture();
    this.#session.ledger.move('pending', `dropped:${reason}`);
  }

  #deadline(tokens: number): number {
    const { restoreDeadlineMs } = this.#init;
    if (restoreDeadlineMs !== 'auto') return restoreDeadlineMs ?? NO_DEADLINE_KNOWN_MS;
    return Math.max(1_000, (2 * tokens) / ASSUMED_TOKENS_PER_MS);
  }
}

/** What is to be copied, or leased, for a block. One plan for both parts when everything is copied. */
interface Copies {
  readonly rows: CopyPlan;
  /** The sequence's request. */
  readonly rowsOf: number;
  readonly leasesRows: boolean;
  readonly state: CopyPlan;
  readonly leasesState: boolean;
}

/** Places for a block's files, headers written, copies noted. */
class Prepared implements PreparedBlock {
  readonly copies: Copies;
  readonly unit: PlacedUnit;
  readonly state: PlacedSave | null;
  /** Handed over: there is nothing to give back. */
  used = false;

  constructor(copies: Copies, unit: PlacedUnit, state: PlacedSave | null) {
    this.copies = copies;
    this.unit = unit;
    this.state = state;
  }

  release(): void {
    if (this.used) return;
    this.used = true;
    this.state?.release();
    this.unit.release();
  }
}

/** What changes the bits of a forward pass or of what is stored of it. The salt keeps tenants apart. */
function extraKeys({ salt, stateCodec }: EngineStoreInit, model: EngineModel, numerics: readonly string[]): string[] {
  const keys = [...numerics];
  if (salt !== '') keys.push(`salt:${salt}`);
  // A state that was rounded must never be taken for one that was not.
  if (stateCodec !== 'fp32' && model.hasFixedState) keys.push(`state:${stateCodec}`);
  return keys;
}

/** Two requests of one session may carry the same id (an app's choice): staging must not mix them. */
function stagingId(request: WireRequest): string {
  return `${request.requestNo}:${request.requestId}`;
}
