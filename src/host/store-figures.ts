/** Figures of one engine's sessions with its store, one after another: usually there is one. */
import type { EngineStats } from './api.ts';

export type StoreFigures = Pick<EngineStats['store'], 'pendingBytes' | 'peakPendingBytes' | 'backpressureMs' | 'bytesWritten' | 'codecFallbacks'> &
  Pick<EngineStats, 'boundaries'>;

type Boundaries = EngineStats['boundaries'];

/** Of an engine without a session. */
export function noFigures(): StoreFigures {
  return {
    boundaries: { captured: 0, coalesced: 0, written: 0, durable: 0, superseded: 0, evicted: 0, dropped: {}, failed: 0, pending: 0 },
    pendingBytes: 0,
    peakPendingBytes: 0,
    backpressureMs: 0,
    bytesWritten: 0,
    codecFallbacks: 0,
  };
}

export function addFigures(a: StoreFigures, b: StoreFigures): StoreFigures {
  return {
    boundaries: addBoundaries(a.boundaries, b.boundaries),
    pendingBytes: a.pendingBytes + b.pendingBytes,
    peakPendingBytes: Math.max(a.peakPendingBytes, b.peakPendingBytes),
    backpressureMs: a.backpressureMs + b.backpressureMs,
    bytesWritten: a.bytesWritten + b.bytesWritten,
    codecFallbacks: a.codecFallbacks + b.codecFallbacks,
  };
}

function addBoundaries(a: Boundaries, b: Boundaries): Boundaries {
  const dropped = { ...a.dropped };
  for (const [reason, count] of Object.entries(b.dropped)) dropped[reason] = (dropped[reason] ?? 0) + count;
  return {
    captured: a.captured + b.captured,
    coalesced: a.coalesced + b.coalesced,
    written: a.written + b.written,
    durable: a.durable + b.durable,
    superseded: a.superseded + b.superseded,
    evicted: a.evicted + b.evicted,
    failed: a.failed + b.failed,
    pending: a.pending + b.pending,
    dropped,
  };
}
