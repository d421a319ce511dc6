/** From a request as it came over the wire to a sequence: prompt tokens, limits, sampler, and what the cache does for it. */
import { randomInt } from 'node:crypto';
import type { WireRequest } from '../shared/engine-protocol.ts';
import { TidemarkError } from '../shared/errors.ts';
import type { EngineContext } from './engine-context.ts';
import type { EngineStoreClient } from './engine-store-client.ts';
import { Sequence } from './sequence.ts';
import { StreamingDetokenizer } from './text/detokenizer.ts';
import { Sampler } from './text/sampler.ts';
import { resolveSampling } from './text/sampling.ts';

const DEFAULT_MAX_TOKENS = 512;

/** Throws what is wrong with the request; nothing has been computed or claimed then. */
export function buildSequence(context: EngineContext, store: EngineStoreClient | null, request: WireRequest): Sequence {
  const { model } = context;
  const promptTokens = model.encode(request.input);
  const room = model.maxContext - promptTokens.length;
  if (room < 1) {
    throw new TidemarkError(
      'PROMPT_TOO_LONG',
      `The prompt has ${promptTokens.length} tokens and the context holds ${model.maxContext}, the answer included. Shorten the prompt to at most ${model.maxContext - 1} tokens.`,
      { details: { promptTokens: promptTokens.length, maxContext: model.maxContext } },
    );
  }
  const maxTokens = request.probe !== undefined ? request.probe.greedy : Math.min(request.maxTokens ?? DEFAULT_MAX_TOKENS, room);
  const sampler = new Sampler(resolveSampling(request.sampling, model.tokenizer.generationConfig, randomInt(2 ** 32)));
  const endTokens = new Set([...(request.ignoreEos ? [] : model.endTokens), ...request.stopTokens]);
  const persists = store?.mayWrite === true && request.persist !== 'off';
  const looksUp = store !== null && !request.noRestore;
  return new Sequence(context, {
    request,
    promptTokens,
    maxTokens,
    endTokens,
    sampler,
    detokenizer: new StreamingDetokenizer(model.tokenizer, { stop: request.stop }),
    recorder: persists ? store.recorder(request, promptTokens.length, context.options.deterministic) : null,
    restore: looksUp ? store.restore(request, promptTokens) : null,
    missReason: looksUp ? null : 'off',
  });
}
