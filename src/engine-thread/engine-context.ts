/**
 * What every sequence of one engine shares: the model on its stream, the options, and the ways out (delivery port,
 * shared words, counters). Owned by the engine thread.
 */

import type { EngineCounters } from '../shared/engine-counters.ts';
import type { Delivery, ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import type { RequestTable } from '../shared/request-table.ts';
import type { PassCompanion } from './boundary/recorder.ts';
import type { LayerCache } from './cache/layer-cache.ts';
import type { CacheClears } from './cache-clears.ts';
import type { EngineModel } from './engine-model.ts';
import type { Stream } from './mlx/types.ts';

export interface EngineContext {
  readonly options: ResolvedEngineOptions;
  readonly stream: Stream;
  readonly model: EngineModel;
  readonly requests: RequestTable;
  readonly counters: EngineCounters;
  readonly clears: CacheClears;
  /**
   * One forward pass over `tokens` appended to `caches`, fully evaluated when it returns: caches and, for 'last', the
   * float32 logits of the last position ([vocabSize], copied to the host). `beside` works while it is computed.
   */
  forward(tokens: readonly number[], caches: LayerCache[], logits: 'last' | 'none', beside?: PassCompanion | null): Float32Array | null;
  /** True when no other sequence has work: waiting then holds nobody up. */
  alone(): boolean;
  deliver(message: Delivery): void;
  /** Told of every error that ended a sequence; a lost device ends the engine. */
  onStepError(error: unknown): void;
}
