/**
 * `tidemark eval`: the logits behind a list of token ids, by the path that requests take. Not part of the public API.
 */
import type { Probe, ProbeOptions } from '../shared/engine-protocol.ts';
import type { Engine } from './api.ts';
import { EngineHost, EVALUATE } from './engine.ts';
import { invalid } from './validate.ts';

export interface EvaluateOptions extends Partial<ProbeOptions> {
  ids: readonly number[];
}

/** Evaluates `ids` as a prompt; `chunk` null (default) is one pass, `greedy` tokens follow it. */
export function evaluateTokens(engine: Engine, options: EvaluateOptions): Promise<Probe> {
  if (!(engine instanceof EngineHost)) throw invalid('engine', 'an engine made by createEngine', engine);
  return engine[EVALUATE](options.ids, {
    chunk: options.chunk ?? null,
    greedy: options.greedy ?? 0,
    full: options.full ?? false,
    restoreLimit: options.restoreLimit ?? null,
    forks: options.forks ?? false,
  });
}
