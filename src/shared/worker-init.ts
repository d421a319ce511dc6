/**
 * What the keeper gives to the two loop threads, and the contract of their entry modules.
 *
 * - `snapshot-writer/main.ts` is a Worker entry; `workerData` is a `WriterInit`.
 * - `store-worker/main.ts` has a default export `run(init: StoreWorkerInit): void`, the one long-lived task of the Piscina pool.
 *
 * A loop, from its start on:
 * 1. enters the thread table (kind 'snapshot-writer' or 'store-worker'), sets its state to 'running', posts `started`;
 * 2. turns: read `bell.seen()`; take every message of the mailbox; serve the rings; when nothing was found and `stop` is
 *    'none', say idle and sleep with `bell.wait(seen)`;
 * 3. returns when `stop` is 'drain' and everything queued is done, or when it is 'now': leaves the thread table, sets its
 *    state to 'returned'. It never calls process.exit.
 *
 * It answers `attach` with `attached` and `detach` with `detached`; it bumps its progress word for each item done. It must
 * not use `on('message')` on the mailbox: a thread that blocks would never hear it.
 */
import type { MessagePort } from 'node:worker_threads';
import type { LoopEvent, StoreEvent } from './events.ts';
import type { ProcessShared } from './process-shared.ts';

/** 'read-only': another process writes this folder, or it cannot be written: restores are served, nothing is stored. */
export type StoreMode = 'writer' | 'read-only';

export interface LoopInit {
  readonly shared: ProcessShared;
  /** Words of both loops (`HubControl`): each may ring the other's bell. */
  readonly hub: SharedArrayBuffer;
  /** Real path of the cache folder. */
  readonly cacheDir: string;
  /** `<cacheDir>/_boundary_snapshots`. */
  readonly stagingRoot: string;
  readonly mode: StoreMode;
  readonly maxBytes: number;
  readonly blockSize: number;
  /** Which life of this thread it is, from 1; above 1 it replaces one that died. */
  readonly life: number;
  /** Carries `LoopMessage`s, read with `receiveMessageOnPort` (see mailbox.ts). */
  readonly mailbox: MessagePort;
  /** Carries `StoreEvent` and `LoopEvent` to the keeper, which passes store events on to main. */
  readonly events: MessagePort;
}

export type WriterInit = LoopInit;
export type StoreWorkerInit = LoopInit;

export type LoopMessage =
  /** `memory` is the session's SessionMemory (src/shared/session). */
  | { readonly type: 'attach'; readonly session: number; readonly memory: unknown }
  /** Forget the session once what it has queued is done. */
  | { readonly type: 'detach'; readonly session: number }
  /** A temporary buffer for one oversize item. `key` is chosen by the session. */
  | { readonly type: 'buffer'; readonly session: number; readonly key: number; readonly buffer: SharedArrayBuffer };

/** What an engine posts to its hub port: the keeper passes it on to the loops named. */
export interface HubMail {
  readonly to: 'writer' | 'store' | 'both';
  readonly message: LoopMessage;
}

export type LoopPost = StoreEvent | LoopEvent;
