import { argmax, greedy, logsumexp, prefill, withCaches, withModel } from './kit.mjs';

/** Prompts one after the other, prefilled in chunks of `chunk`, then greedy tokens. */
export function answers(s, { dir, compute, prompts, chunk, tokens }) {
  return withModel(dir, s, compute, (model) =>
    prompts.map((ids) =>
      withCaches(model, (caches) => {
        const logits = prefill(model, caches, ids, s, chunk ?? Infinity);
        const figures = { argmax: argmax(logits), logsumexp: logsumexp(logits), head: [...logits.slice(0, 16)], l2: Math.hypot(...logits) };
        return { ...figures, greedy: greedy(model, caches, logits, tokens, s).tokens, offsets: caches.map((cache) => cache.offset) };
      }),
    ),
  );
}

export function describe(s, { dir, compute }) {
  return withModel(dir, s, compute, (model) => ({ info: model.info, warnings: model.warnings, caches: model.makeCaches().map((cache) => cache.className) }));
}
