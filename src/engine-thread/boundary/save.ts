/**
 * `save`: one boundary's state goes from the engine's arrays into the writer's queue.
 *
 * Engine thread. Order: refuse bad names → prepare (offsets, compaction, codec) → lay out → admit → copy the bytes (no lock
 * held) → let the arrays go → publish under `pending` and `registry`. The bytes are copied before any wait: without room under the cap they go into the express
 * item, which is outside of it, and move into the queue without another copy when room comes. If none comes, the overflow
 * policy decides. A true answer that was not queued means the file is on disk.
 */
import type { CopyPlan } from '../../shared/blocks/copy-plan.ts';
import { fillImage, type ImageLayout, layoutImage } from '../../shared/blocks/image.ts';
import { DROP_REASONS, type DropReason, TidemarkError } from '../../shared/errors.ts';
import type { Files } from '../../shared/files.ts';
import type { LayerState } from '../../shared/layer-state.ts';
import type { ItemRef, Refusal } from '../../shared/session/item-space.ts';
import { ITEM, KIND } from '../../shared/session/item-table.ts';
import type { Reservation } from '../../shared/session/pending.ts';
import { type Publication, publishItem } from '../../shared/session/publication.ts';
import { isTokenCount, keyToHex, type RequestKey } from '../../shared/session/request-key.ts';
import type { Session } from '../../shared/session/session.ts';
import { now } from '../../shared/sync/clock.ts';
import { writeInline, writeThrough } from './overflow.ts';
import { prepareState, type StatePipeline } from './prepare.ts';

/** What the state belongs to in the block store; without it the file stands for itself. */
export interface BlockIdentity {
  readonly hash: string;
  readonly parent: string;
  /** The block's own tokens; the last of them is token `tokenCount - 1`. */
  readonly tokens: Uint32Array;
  readonly fingerprint: string;
}

export interface SaveOptions {
  /** Tokens of a full block. Given, append-only state is stored as the rows of its own block. */
  readonly blockSize?: number;
  readonly block?: BlockIdentity;
  /** The request's number, for events. */
  readonly requestNo?: number;
  /** Admission obtained before; used up or released in any case. */
  readonly reservation?: Reservation;
  /** False during decode of others: without room at once the boundary is dropped. Default true. */
  readonly mayWait?: boolean;
  /** Called as soon as the bytes are copied: the arrays may go. */
  readonly onCopied?: () => void;
}

/** The file that a save of this request would fill: nothing is copied and nothing admitted yet. */
export function layOutSave(request: SaveRequest & { readonly layers: readonly LayerState[] }): ImageLayout {
  const { tokenCount, key, options, pipeline, layers } = request;
  const { block, blockSize = 0 } = options;
  const tokens = block?.tokens ?? new Uint32Array(0);
  return layoutImage({
    part: 'state',
    blockHash: block?.hash ?? keyToHex(key),
    parentHash: block?.parent ?? '',
    start: tokenCount - tokens.length,
    end: tokenCount,
    // 0: no chain of blocks. A file must not state a size that its reader refuses.
    blockSize: Number.isSafeInteger(blockSize) && blockSize > 0 ? blockSize : 0,
    tokens,
    fingerprint: block?.fingerprint ?? '',
    layers: prepareState(layers, tokenCount, options.blockSize, pipeline),
  });
}

/** `failed`: the disk refused it while the caller waited (`detail` is the errno); other reasons are drops. */
export type SaveResult =
  | { readonly ok: true; readonly how: 'queued' | 'coalesced' | 'written' }
  | { readonly ok: false; readonly reason: DropReason | 'failed'; readonly detail: string };

export interface SaveRequest {
  readonly key: RequestKey;
  readonly tokenCount: number;
  readonly layers: readonly LayerState[] | (() => readonly LayerState[]);
  readonly options: SaveOptions;
  readonly pipeline: StatePipeline;
}

export function save(session: Session, files: Files, request: SaveRequest): SaveResult {
  const { ledger } = session;
  if (session.state !== 'open') return refuse('closed', 'the session is closed');
  if (!isTokenCount(request.tokenCount)) return refuse('invalid', `a token count is a positive integer, got ${String(request.tokenCount)}`);
  const known = session.guarded<boolean | null>(
    () => session.underPending('save', () => session.items.findVisible(request.key, request.tokenCount) >= 0),
    () => null,
  );
  if (known === true) {
    ledger.coalesce(false);
    return { ok: true, how: 'coalesced' };
  }
  ledger.capture();
  if (known === null) {
    ledger.move('pending', 'dropped:lock');
    return refuse('lock', 'the pending buffer is not to be had');
  }
  // From here on the boundary is counted: as dropped by this function, or by whoever makes its item invisible.
  const placement = new Placement(session, request);
  return placement.attempt(() => placement.run(files));
}

/** A save with its place and its bytes, not published yet. Ends with `publish` or `release`; after one of them both do nothing. */
export interface PlacedSave {
  /** The item, until it is published or released. */
  readonly ref: ItemRef;
  /**
   * Makes it the boundary's pending entry, once the copies are made; the caller then rings `writerBell`. Under the same lock
   * `together` hands over what belongs to it, unless the save is refused.
   */
  publish(together: () => void): SaveResult;
  /** Gives everything back; nothing is counted. */
  release(): void;
}

/**
 * The first half of a save, before its bytes are there: takes a place and notes the copies in `plan`. Null when that cannot be
 * had at once, or something is wrong with it; `save` then says what.
 */
export function placeSave(session: Session, request: SaveRequest, image: ImageLayout, plan: CopyPlan): PlacedSave | null {
  if (session.state !== 'open' || !isTokenCount(request.tokenCount)) return null;
  const placement = new Placement(session, request);
  return session.guarded<PlacedSave | null>(
    () => placement.place(image, plan),
    () => null,
  );
}

/** One save on its way; counts it once, whatever happens. */
class Placement {
  readonly #session: Session;
  readonly #request: SaveRequest;
  /** Filled or being filled, not published yet: ours to free. */
  #ref: ItemRef | null = null;
  #settled = false;

  constructor(session: Session, request: SaveRequest) {
    this.#session = session;
    this.#request = request;
  }

  run(files: Files): SaveResult {
    const { options } = this.#request;
    const captured = typeof this.#request.layers === 'function' ? this.#request.layers() : this.#request.layers;
    if (captured.length === 0) return this.#dropped('empty', 'no layer was captured');
    const image = layOutSave({ ...this.#request, layers: captured });
    const admitted = this.#admit(image.totalBytes);
    if (typeof admitted !== 'string') {
      this.#fill(admitted, image);
      return this.#publish(admitted, 'queue') ?? { ok: true, how: 'queued' };
    }
    if (admitted === 'oversize') return this.#dropped('oversize', `${image.totalBytes} bytes exceed the cap and there is no way to hand them over`);
    if (options.mayWait === false) return this.#dropped('backpressure', 'no room, and this save may not wait');
    return this.#overflow(image, admitted, files);
  }

  place(image: ImageLayout, plan: CopyPlan): PlacedSave | null {
    const ref = this.#admit(image.totalBytes);
    if (typeof ref === 'string') return null;
    plan.add(image, this.#session.space.bytesOf(ref.item)!);
    return {
      ref,
      publish: (together) => {
        if (this.#ref === null) return refuse('closed', 'it was ended before');
        this.#session.ledger.capture();
        try {
          return this.#publish(ref, 'queue', together) ?? { ok: true, how: 'queued' };
        } catch (error) {
          return this.#failed(error);
        }
      },
      release: () =>
        this.#session.guarded<void>(
          () => this.#free(),
          () => undefined,
        ),
    };
  }

  /** Runs what ends the save; an error counts as its reason. */
  attempt(run: () => SaveResult): SaveResult {
    try {
      return run();
    } catch (error) {
      return this.#failed(error);
    }
  }

  #failed(error: unknown): SaveResult {
    const reason = dropReasonOf(error);
    this.drop(reason);
    if (error instanceof TidemarkError && error.code === 'LOCK_OWNER_DIED') this.#session.fail();
    return refuse(reason, error instanceof Error ? error.message : String(error));
  }

  /** Counts the boundary as dropped unless it is counted already, and frees what is still ours. */
  drop(reason: DropReason): void {
    this.#request.options.reservation?.release();
    if (!this.#settled) this.#session.ledger.move('pending', `dropped:${reason}`);
    this.#settled = true;
    this.#free();
  }

  #free(): void {
    const { space, state } = this.#session;
    const ref = this.#ref;
    if (ref === null || state === 'failed') return;
    this.#ref = null;
    this.#session.underPending('save.drop', () => {
      space.dropBytes(ref.item);
      space.free(ref.item);
    });
  }

  #admit(bytes: number): ItemRef | Refusal {
    const { space } = this.#session;
    return this.#session.underPending('save.admit', () => {
      const place = space.admit(KIND.state, bytes, this.#request.options.reservation ?? null);
      if (typeof place !== 'string') this.#label(place);
      return place;
    });
  }

  /** `pending` is held: names the item, so that it can be told whose it is. */
  #label(ref: ItemRef): void {
    const { items } = this.#session;
    items.setKey(ref.item, this.#request.key);
    items.set(ref.item, ITEM.tokenCount, this.#request.tokenCount);
    items.set(ref.item, ITEM.requestNo, this.#request.options.requestNo ?? 0);
    this.#ref = ref;
  }

  #fill(ref: ItemRef, image: ImageLayout): void {
    fillImage(image, this.#session.space.bytesOf(ref.item)!);
    this.#request.options.onCopied?.();
  }

  #overflow(image: ImageLayout, why: Refusal, files: Files): SaveResult {
    const session = this.#session;
    const { limits, pending, space } = session;
    this.#request.options.reservation?.release();
    // One limit for both waits: for the express item, then for room.
    const until = now() + limits.reserveWaitMs;
    let express: ItemRef | Refusal = 'queue';
    session.underPending('save.express', () =>
      pending.waitFor(() => {
        express = space.admitExpress(image.totalBytes);
        if (typeof express !== 'string') this.#label(express);
        return express !== 'queue';
      }, limits.reserveWaitMs),
    );
    if (typeof express === 'string') return this.#dropped('backpressure', 'another save is being written through');
    this.#fill(express, image);
    if (why === 'bytes') {
      const queued = this.#waitForRoom(express, Math.max(0, until - now()));
      if (queued !== null) return this.#publish(queued, 'queue') ?? { ok: true, how: 'queued' };
    }
    if (session.state !== 'open') return this.#dropped('closed', 'the session was closed while the save waited');
    if (limits.overflow === 'drop') return this.#dropped('backpressure', `no room within ${limits.reserveWaitMs} ms`);
    const how = limits.overflow === 'inline' ? 'inline' : 'express';
    const ended = this.#publish(express, how);
    if (ended !== null) return ended;
    return how === 'inline' ? writeInline(session, express, files) : writeThrough(session, express);
  }

  /** For bytes under the cap; a full queue ends the wait at once. */
  #waitForRoom(express: ItemRef, timeoutMs: number): ItemRef | null {
    const { pending, space } = this.#session;
    let place: ItemRef | Refusal = 'bytes';
    this.#session.underPending('save.wait', () =>
      pending.waitFor(() => {
        place = space.admitFromExpress(express);
        if (typeof place !== 'string') this.#label(place);
        return place !== 'bytes';
      }, timeoutMs),
    );
    return typeof place === 'string' ? null : place;
  }

  /** Null when it is published; then the item is no longer ours. */
  #publish(ref: ItemRef, how: 'queue' | 'express' | 'inline', together: (() => void) | null = null): SaveResult | null {
    const session = this.#session;
    // The buffer of an oversize item travels by message; the writer waits for whichever comes later.
    if (how !== 'inline') session.oversize.hand(ref.item, ref.generation, 'writer');
    const outcome: Publication = publishItem(session, ref, this.#request, how, together);
    this.#ref = null;
    if (outcome === 'published') {
      this.#settled = true;
      return null;
    }
    if (outcome === 'coalesced') {
      this.#settled = true;
      session.ledger.coalesce(true);
      return { ok: true, how: 'coalesced' };
    }
    return this.#dropped(outcome, outcome === 'registry' ? 'too many staged files wait to be taken' : 'the session was closed');
  }

  #dropped(reason: DropReason, detail: string): SaveResult {
    this.drop(reason);
    return refuse(reason, detail);
  }
}

function refuse(reason: DropReason, detail: string): SaveResult {
  return { ok: false, reason, detail };
}

/** Which reason a thrown error counts under. */
export function dropReasonOf(error: unknown): DropReason {
  if (!(error instanceof TidemarkError)) return 'capture';
  if (error.code === 'TENSOR_POISONED') return 'poisoned';
  const stated = DROP_REASONS.find((reason) => reason === error.details.reason);
  if (stated !== undefined) return stated;
  return error.code.startsWith('LOCK_') ? 'lock' : 'capture';
}
