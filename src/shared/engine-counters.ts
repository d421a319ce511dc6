/**
 * Figures of one engine that its thread writes and main reads at any time (`engine.stats()`). Each counter has one
 * writer, the engine thread, so plain float64 stores suffice; a reader may see one counter a step ahead of another.
 */
import { MISS_REASONS, type MissReason } from './errors.ts';

export const ENGINE_COUNTERS = [
  'promptTokens',
  'cachedTokens',
  'prefilledTokens',
  'decodedTokens',
  'prefillPasses',
  'decodePasses',
  'finished',
  'aborted',
  'failed',
  'hits',
  'bytesRestored',
  'activeBytes',
  'peakBytes',
  'cacheBytes',
  'foreignStreamOps',
  'clears',
  'clearsSkipped',
  'clearWaitMs',
  'unreleasedBytes',
  'leases',
] as const;
export type EngineCounter = (typeof ENGINE_COUNTERS)[number];

export class EngineCounters {
  readonly #values: Float64Array;

  static create(): SharedArrayBuffer {
    return new SharedArrayBuffer((ENGINE_COUNTERS.length + MISS_REASONS.length) * 8);
  }

  constructor(memory: SharedArrayBuffer) {
    this.#values = new Float64Array(memory);
  }

  add(counter: EngineCounter, amount = 1): void {
    this.#values[ENGINE_COUNTERS.indexOf(counter)]! += amount;
  }

  set(counter: EngineCounter, value: number): void {
    this.#values[ENGINE_COUNTERS.indexOf(counter)] = value;
  }

  get(counter: EngineCounter): number {
    return this.#values[ENGINE_COUNTERS.indexOf(counter)]!;
  }

  addMiss(reason: MissReason): void {
    this.#values[ENGINE_COUNTERS.length + MISS_REASONS.indexOf(reason)]! += 1;
  }

  /** Misses by reason; reasons that never occurred are left out. */
  misses(): Record<string, number> {
    const found: Record<string, number> = {};
    for (const [i, reason] of MISS_REASONS.entries()) {
      const n = this.#values[ENGINE_COUNTERS.length + i]!;
      if (n > 0) found[reason] = n;
    }
    return found;
  }
}
