/**
 * What the writer and the store worker tell the app's main thread. Plain records: they travel by MessagePort through the
 * keeper, which turns its event loop while main may be busy.
 */
import type { DropReason, ErrorCode } from './errors.ts';

/** Names one boundary: session number, the request's number in that session, tokens up to the boundary. */
interface Boundary {
  readonly session: number;
  readonly requestNo: number;
  readonly tokenCount: number;
}

export type StoreEvent =
  /** The boundary's staged file is on disk; its bytes were given back. */
  | ({ readonly type: 'written' } & Boundary)
  /** Everything a restart needs for this boundary is in the block store, synced, its parents included. */
  | ({ readonly type: 'durable'; readonly block: string } & Boundary)
  | ({ readonly type: 'superseded' } & Boundary)
  | ({ readonly type: 'dropped'; readonly reason: DropReason } & Boundary)
  | ({ readonly type: 'failed'; readonly errno: string; readonly message: string } & Boundary)
  /** A stored block was removed for space. */
  | { readonly type: 'evicted'; readonly block: string; readonly bytes: number }
  /** Persistence works less than it should, or not at all; once per cause, until `recovered` with the same code. */
  | { readonly type: 'degraded'; readonly code: ErrorCode; readonly message: string; readonly details: Record<string, unknown> }
  | { readonly type: 'recovered'; readonly code: ErrorCode; readonly message: string }
  /** Worth a line, changes nothing: the index was rebuilt, files of other formats were left alone. */
  | { readonly type: 'note'; readonly code: ErrorCode; readonly message: string; readonly details: Record<string, unknown> };

/** What the two loops tell the keeper about themselves. */
export type LoopEvent =
  /** The loop serves its mailbox and rings. `slot` and `token` are those of its entry in the thread table. */
  | { readonly type: 'started'; readonly slot: number; readonly token: number }
  /** The session's memory is mapped; from now on its rings are served. */
  | { readonly type: 'attached'; readonly session: number }
  /** The loop no longer touches the session's memory. */
  | { readonly type: 'detached'; readonly session: number }
  /** All rings were found empty after there had been work. */
  | { readonly type: 'idle' };
