/**
 * `tidemark eval`: the numbers by which this engine is compared with other implementations.
 */

import { UsageError } from './command-error.ts';
import { withEngine } from './engine-session.ts';
import { isTokenList, readJson } from './prompt-input.ts';
import { MODEL_OPTIONS } from './shared-options.ts';
import { table } from './units.ts';
import { defineVerb } from './verb.ts';

const { model, device, threads } = MODEL_OPTIONS;

export const evaluate = defineVerb({
  name: 'eval',
  summary: 'Runs token sequences through the model and prints logits and greedy tokens.',
  options: {
    model,
    tokens: { type: 'text', value: 'FILE', required: true, help: 'JSON array of {"ids": [token ids]}' },
    chunk: { type: 'integer', value: 'N', min: 1, help: 'tokens per prefill step', defaultText: 'the whole sequence' },
    dtype: {
      type: 'choice',
      choices: ['float32', 'model'],
      help: "arithmetic type: float32, or 'model' for the type of the weights",
      defaultText: 'float32 on CPU, model on GPU',
    },
    greedy: { type: 'integer', value: 'N', min: 0, help: 'greedy tokens to append to each sequence', defaultText: '0' },
    cache: { type: 'text', value: 'DIR', help: 'use this cache folder', defaultText: 'no cache at all' },
    device,
    threads,
  },
  notes: [
    'Prints a JSON array, one entry for each sequence: argmax, logsumexp and logits_head (the first 16 logits) of the position after the last id, ' +
      'greedy (token ids, when asked for), cachedTokens and missReason. Without --json the same as a table.',
  ],
  examples: ['tidemark eval --model models/tide-5m --tokens prompts.json --greedy 64 --json'],
  run: async (values, _positionals, context) => {
    const sequences = readSequences(values.tokens);
    // One JSON array is the whole output; events would stand in its way.
    const asJson = context.out.json;
    context.out.json = false;
    const { chunk, greedy = 0 } = values;
    const options = {
      model: values.model,
      cache: values.cache === undefined ? (false as const) : { dir: values.cache },
      ...(values.dtype === undefined ? {} : { compute: values.dtype }),
      ...(values.device === undefined ? {} : { device: values.device }),
      ...(values.threads === undefined ? {} : { threads: values.threads }),
    };
    try {
      const entries = await withEngine(options, context, async (engine) => {
        const done = [];
        for (const ids of sequences) {
          const result = await context.deps.evaluateTokens(engine, { ids, greedy, ...(chunk === undefined ? {} : { chunk }) });
          done.push({
            argmax: result.argmax,
            logsumexp: result.logsumexp,
            logits_head: result.logitsHead,
            ...(values.greedy === undefined ? {} : { greedy: result.greedy }),
            cachedTokens: result.cachedTokens,
            missReason: result.missReason,
          });
        }
        return done;
      });
      if (asJson) await context.out.line(`[${entries.map((entry) => JSON.stringify(entry)).join(',\n ')}]`);
      else {
        const rows = entries.map((entry, i) => [
          `${i}`,
          `${sequences[i]!.length}`,
          `${entry.argmax}`,
          entry.logsumexp.toFixed(5),
          `${entry.cachedTokens}`,
          entry.missReason ?? '-',
        ]);
        await context.out.line(table([['#', 'tokens', 'argmax', 'logsumexp', 'cached', 'miss'], ...rows], [0, 1, 2, 3, 4]));
      }
      return 0;
    } finally {
      context.out.json = asJson;
    }
  },
});

function readSequences(path: string): number[][] {
  const value = readJson('eval', '--tokens', path);
  if (!Array.isArray(value)) throw new UsageError('eval', `--tokens: ${path} must hold a JSON array of {"ids": [token ids]}`, { path });
  return value.map((entry, i) => {
    if (isTokenList(entry?.ids) && entry.ids.length > 0) return entry.ids;
    throw new UsageError('eval', `--tokens: entry ${i} of ${path} must have "ids", an array of one or more token ids`, { path, entry: i });
  });
}
