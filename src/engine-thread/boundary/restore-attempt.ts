/**
 * One request's try to get its prefix back from the SSD. All or nothing: the caches that `poll` finally gives hold
 * exactly `tokenCount` tokens, evaluated on the engine's stream, or there are none and a reason.
 *
 * Engine thread only. Parts arrive in the session's restore region (shared memory), are copied into MLX arrays at
 * once and given back, so that a long prefix needs no more shared memory than a short one.
 */
import { MISS_REASONS, type MissReason, TidemarkError } from '../../shared/errors.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import type { RestoreTicket } from './restore.ts';
import type { RestoreBuilder } from './restore-builder.ts';

export type RestoreOutcome = { caches: LayerCache[] | null; tokenCount: number; bytes: number; missReason: MissReason | null; detail: string };

export interface RestoreAttemptParts {
  /** Looks the prefix up without I/O to the store worker; null: not known, ask the worker. */
  lookup(): { tokenCount: number } | { reason: MissReason; detail: string } | null;
  /** Starts the restore in the store worker. */
  start(): RestoreTicket;
  builder(): RestoreBuilder;
  /** Milliseconds from `begin` on. */
  deadlineMs: number;
  /** Told when the deadline has passed while the store worker was at it. */
  late?(): void;
}

export class RestoreAttempt {
  readonly #parts: RestoreAttemptParts;
  #ticket: RestoreTicket | null = null;
  #builder: RestoreBuilder | null = null;
  #decided: RestoreOutcome | null = null;
  #deadline = 0;
  #bytes = 0;

  constructor(parts: RestoreAttemptParts) {
    this.#parts = parts;
  }

  begin(): void {
    this.#deadline = performance.now() + this.#parts.deadlineMs;
    const found = this.#parts.lookup();
    if (found !== null && 'reason' in found) {
      this.#decided = miss(found.reason, found.detail);
      return;
    }
    this.#ticket = this.#parts.start();
    this.#builder = this.#parts.builder();
  }

  /** `waitMs`: how long the engine may sleep for the next part; 0 while other sequences have work. */
  poll(waitMs: number): 'waiting' | RestoreOutcome {
    if (this.#decided !== null) return this.#decided;
    const ticket = this.#ticket!;
    for (;;) {
      if (performance.now() > this.#deadline) return this.#late('the restore took longer than restoreDeadlineMs');
      const next = ticket.next(waitMs);
      switch (next.type) {
        case 'waiting':
          return 'waiting';
        case 'part':
          try {
            this.#bytes += this.#builder!.add(next);
          } catch (error) {
            return this.#end(refusal(error));
          } finally {
            next.release();
          }
          break;
        case 'miss':
          return next.reason === 'deadline' ? this.#late(next.detail) : this.#end(miss(next.reason, next.detail));
        case 'done':
          return this.#complete(next.tokenCount, next.reason, next.detail);
      }
    }
  }

  cancel(): void {
    this.#ticket?.cancel();
    this.#ticket = null;
    this.#builder?.release();
    this.#builder = null;
  }

  #late(detail: string): RestoreOutcome {
    this.#parts.late?.();
    return this.#end(miss('deadline', detail));
  }

  #complete(tokenCount: number, reason: MissReason | null, detail: string): RestoreOutcome {
    try {
      const caches = this.#builder!.finish(tokenCount);
      const outcome: RestoreOutcome = { caches, tokenCount, bytes: this.#bytes, missReason: reason, detail };
      this.#builder = null;
      return this.#end(outcome);
    } catch (error) {
      // A state that the model refuses is a miss like any other; the live caches were never touched.
      return this.#end(refusal(error));
    }
  }

  #end(outcome: RestoreOutcome): RestoreOutcome {
    this.#decided = outcome;
    this.cancel();
    return outcome;
  }
}

/** What was read but is not accepted: for the reason that the error states, else 'failed'. */
function refusal(error: unknown): RestoreOutcome {
  if (!(error instanceof TidemarkError)) return miss('failed', String(error));
  return miss(MISS_REASONS.find((reason) => reason === error.details.missReason) ?? 'failed', error.message);
}

function miss(reason: MissReason, detail: string): RestoreOutcome {
  return { caches: null, tokenCount: 0, bytes: 0, missReason: reason, detail };
}
