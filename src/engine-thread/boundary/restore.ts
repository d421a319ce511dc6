/**
 * Asking for a stored prefix, on the engine thread. Works by shared words alone, so the engine may look in between its steps
 * (`next(0)`) or sleep until something comes.
 *
 * One restore at a time has the region; further tickets wait for it in order, their deadlines running.
 */
import type { LookupRequest } from '../../shared/blocks/chain-lookup.ts';
import { layersFromImage, PagedBytes, parseImageHeader } from '../../shared/blocks/image.ts';
import { RestoreAsker } from '../../shared/blocks/restore-asker.ts';
import { encodeRestoreRequest } from '../../shared/blocks/restore-request.ts';
import type { Doorbell } from '../../shared/doorbell.ts';
import type { MissReason } from '../../shared/errors.ts';
import type { BlockPart, LayerState } from '../../shared/layer-state.ts';
import { now } from '../../shared/sync/clock.ts';

export interface RestoreOptions extends LookupRequest {
  /** Longest time until the last part, in ms from `begin`. */
  readonly deadlineMs: number;
}

export type RestoreEvent =
  /** Verified bytes of one block part. Copy them, then call `release()`. Parts behind the final `tokenCount` are to be dropped. */
  | {
      readonly type: 'part';
      readonly part: BlockPart;
      readonly blockIndex: number;
      readonly start: number;
      readonly end: number;
      readonly layers: LayerState[];
      readonly bytes: number;
      release(): void;
    }
  /**
   * The prefix [0, tokenCount) may be taken over: kv parts with `end <= tokenCount`, and the state part with
   * `end === tokenCount`. `reason` says why less than what was stored could be used; null when it is all there was.
   */
  | { readonly type: 'done'; readonly tokenCount: number; readonly reason: MissReason | null; readonly detail: string }
  | { readonly type: 'miss'; readonly reason: MissReason; readonly detail: string }
  | { readonly type: 'waiting' };

const WAITING: RestoreEvent = { type: 'waiting' };
const SLICE_MS = 50;

export interface RestoreClientOptions {
  /** False when the store worker's thread is gone and not replaced yet: tickets end as `worker` at once instead of at their deadline. */
  readonly workerIsAlive?: () => boolean;
}

export class RestoreClient {
  readonly #asker: RestoreAsker;
  readonly #bell: Doorbell;
  readonly #workerIsAlive: () => boolean;
  readonly #queue: RestoreTicket[] = [];
  /** Number of the last posted request, also when its ticket has lost interest: it must end before the next is posted. */
  #posted = 0;

  /** `memory`: `session.memory.restore`; `bell`: `session.storeBell`. */
  constructor(memory: SharedArrayBuffer, bell: Doorbell, options: RestoreClientOptions = {}) {
    this.#asker = new RestoreAsker(memory);
    this.#bell = bell;
    this.#workerIsAlive = options.workerIsAlive ?? (() => true);
  }

  /** Whether the store worker keeps the index on disk, so that `IndexReader` may be believed. */
  get indexUsable(): boolean {
    return this.#asker.indexUsable;
  }

  begin(options: RestoreOptions): RestoreTicket {
    const ticket = new RestoreTicket(this, this.#asker, this.#bell, options);
    this.#queue.push(ticket);
    this.advance();
    return ticket;
  }

  /** @internal Posts the first waiting request when the region is free. */
  advance(): void {
    const first = this.#queue[0];
    if (first === undefined || first.number !== 0) return;
    if (this.#posted !== 0) {
      if (this.#asker.result(this.#posted) === null) return;
      this.#asker.releaseRest();
      if (!this.#asker.idle) return;
    }
    const bytes = first.encode();
    if (bytes.length > this.#asker.room) {
      first.refuse('busy', `the request of ${bytes.length} bytes does not fit into the restore region`);
      return;
    }
    this.#posted = this.#asker.post(bytes);
    first.number = this.#posted;
    this.#bell.ring();
  }

  /** @internal */
  ended(ticket: RestoreTicket): void {
    const at = this.#queue.indexOf(ticket);
    if (at >= 0) this.#queue.splice(at, 1);
    this.advance();
  }

  /** @internal */
  get workerAlive(): boolean {
    return this.#workerIsAlive();
  }
}

export class RestoreTicket {
  /** @internal Number of the posted request; 0 while it waits for the region. */
  number = 0;
  readonly #client: RestoreClient;
  readonly #asker: RestoreAsker;
  readonly #bell: Doorbell;
  readonly #deadline: number;
  readonly #options: RestoreOptions;
  /** Slots of parts that were handed out and not released. */
  readonly #open = new Set<number>();
  #final: RestoreEvent | null = null;

  /** @internal */
  constructor(client: RestoreClient, asker: RestoreAsker, bell: Doorbell, options: RestoreOptions) {
    this.#client = client;
    this.#asker = asker;
    this.#bell = bell;
    this.#options = options;
    this.#deadline = now() + options.deadlineMs;
  }

  /** @internal */
  encode(): Uint8Array {
    const { deadlineMs: _, tokens, maxTokens, ...rest } = this.#options;
    return encodeRestoreRequest({ ...rest, maxTokens, tokens: tokens.subarray(0, Math.max(0, maxTokens)), deadline: this.#deadline });
  }

  /** @internal */
  refuse(reason: MissReason, detail: string): void {
    this.#end({ type: 'miss', reason, detail });
  }

  /**
   * What comes next, waiting up to `timeoutMs` for it; 'waiting' when that passed. After 'done' or 'miss' it repeats that.
   * The engine may call it with 0 between its steps.
   */
  next(timeoutMs: number): RestoreEvent {
    const until = now() + timeoutMs;
    for (;;) {
      // The signal is read before anything is looked at, so whatever comes later ends the sleep.
      const signal = this.#asker.signal();
      const event = this.#poll();
      if (event !== null) return event;
      const left = until - now();
      if (left <= 0) return WAITING;
      this.#asker.sleep(signal, Math.min(left, SLICE_MS));
    }
  }

  #poll(): RestoreEvent | null {
    if (this.#final !== null) return this.#final;
    this.#client.advance();
    if (this.#final !== null) return this.#final;
    if (this.number !== 0) {
      const part = this.#nextPart();
      if (part !== null) return part;
      const result = this.#asker.result(this.number);
      // Looked at again: a part may have been published between the two looks.
      const late = result === null ? null : this.#nextPart();
      if (late !== null) return late;
      if (result !== null) {
        const { tokenCount, reason, detail } = result;
        return this.#end(tokenCount > 0 ? { type: 'done', tokenCount, reason, detail } : { type: 'miss', reason: reason ?? 'absent', detail });
      }
    }
    if (now() > this.#deadline) return this.#give('deadline', 'the restore took longer than its deadline');
    if (!this.#client.workerAlive) return this.#give('worker', 'the store worker is not running');
    return null;
  }

  #nextPart(): RestoreEvent | null {
    const found = this.#asker.take();
    if (found === null) return null;
    const { slot, bytes, part, blockIndex, start, end } = found;
    // The worker verified every byte a moment ago and nobody writes here until the part is released.
    const image = parseImageHeader(bytes, bytes.length, { unsealed: true });
    const layers = image.ok ? layersFromImage(image, PagedBytes.of(bytes)) : null;
    if (layers === null) {
      this.#asker.release(slot);
      return this.#give('failed', `part ${part} of block ${blockIndex} could not be read after it was verified`);
    }
    this.#open.add(slot);
    return { type: 'part', part, blockIndex, start, end, layers, bytes: bytes.length, release: () => this.#release(slot) };
  }

  #release(slot: number): void {
    if (!this.#open.delete(slot)) return;
    this.#asker.release(slot);
    this.#bell.ring();
    if (this.#final !== null) this.#client.advance();
  }

  /** Ends the ticket from this side: the worker is told, everything handed out is given back. */
  #give(reason: MissReason, detail: string): RestoreEvent {
    if (this.number !== 0) this.#asker.cancel(this.number);
    for (const slot of this.#open) this.#asker.release(slot);
    this.#open.clear();
    this.#bell.ring();
    return this.#end({ type: 'miss', reason, detail });
  }

  #end(event: RestoreEvent): RestoreEvent {
    this.#final = event;
    this.#client.ended(this);
    return event;
  }

  /** The answer is not wanted any more. Layers of parts that were not released may not be read after it. */
  cancel(): void {
    if (this.#final === null) this.#give('cancelled', 'cancelled by the caller');
  }
}
