/** What the main thread and the keeper say to each other, over one MessagePort. Both turn their event loops. */
import type { MessagePort } from 'node:worker_threads';
import type { StoreEvent } from '../shared/events.ts';
import type { ProcessShared } from '../shared/process-shared.ts';
import type { SessionMemory } from '../shared/session/index.ts';
import type { StoreMode } from '../shared/worker-init.ts';

/** The two threads that the keeper makes. */
export type LoopName = 'writer' | 'store';

export interface KeeperInit {
  readonly shared: ProcessShared;
  readonly hub: SharedArrayBuffer;
  readonly cacheDir: string;
  readonly stagingRoot: string;
  readonly mode: StoreMode;
  readonly maxBytes: number;
  readonly blockSize: number;
  readonly port: MessagePort;
  readonly tuning: KeeperTuning;
}

/** Times of the keeper, and what tests put in the place of the loops. */
export interface KeeperTuning {
  /** Waits before a dead loop is replaced: first, second, … death in a row; the last one repeats. */
  readonly backOffMs: readonly number[];
  /** How long the loops may take to serve a new session, their start and their replacements included. */
  readonly attachMs: number;
  /** A life this long ends a row of deaths. */
  readonly stableMs: number;
  /** How long a loop may take to return once it was told to stop at once. */
  readonly stopMs: number;
  /** How long a terminated thread may take to end before it is given up: it sits in a system call. */
  readonly terminateMs: number;
  /** Draining ends this long after the last progress. */
  readonly noProgressMs: number;
  /** Draining ends then, whatever progress there is, unless the caller gave more. */
  readonly absoluteMs: number;
  readonly writerEntry?: string;
  readonly storeEntry?: string;
  /** Added to the init records of the loops. */
  readonly writerInit?: Record<string, unknown>;
  readonly storeInit?: Record<string, unknown>;
}

export const DEFAULT_TUNING: KeeperTuning = {
  backOffMs: [0, 500, 2_000, 10_000, 30_000],
  attachMs: 30_000,
  stableMs: 60_000,
  stopMs: 5_000,
  terminateMs: 1_000,
  noProgressMs: 60_000,
  absoluteMs: 300_000,
};

export type ToKeeper =
  | { readonly type: 'attach'; readonly memory: SessionMemory; readonly port: MessagePort }
  | { readonly type: 'detach'; readonly session: number }
  /** Drain, then stop both loops; ends the keeper. */
  | { readonly type: 'close'; readonly deadlineMs: number };

export type FromKeeper =
  /** It runs, and has started both loops. */
  | { readonly type: 'ready' }
  | { readonly type: 'attached'; readonly session: number }
  | { readonly type: 'detached'; readonly session: number }
  | { readonly type: 'store-event'; readonly from: LoopName; readonly event: StoreEvent }
  /** The loop found nothing left to do. */
  | { readonly type: 'idle'; readonly loop: LoopName }
  /** A loop died with a lock of this session; the session is closed and no loop serves it any more. */
  | ({ readonly type: 'lost' } & LostSession)
  | { readonly type: 'closed'; readonly report: KeeperReport };

export interface LostSession {
  readonly session: number;
  readonly lock: string;
  readonly thread: string;
  readonly site: string;
  /** Boundaries that ended as failed by it. */
  readonly failed: number;
}

export interface KeeperReport {
  /** Whether everything queued was done before the loops ended. */
  readonly drained: boolean;
  /** Threads that could not be ended: they sit in a system call. */
  readonly stuck: readonly string[];
}
