/**
 * Child of the restart tests: generates from token ids and writes what it sees as JSON lines, until it ends or is killed.
 * Job on argv: { model, dir, tokens, maxTokens, blockSize?, prefillChunk? }.
 */
import { createEngine } from '../../dist/index.js';

const job = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const engine = await createEngine({
  model: job.model,
  ...(job.prefillChunk === undefined ? {} : { prefillChunk: job.prefillChunk }),
  cache: { dir: job.dir, maxBytes: 2_000_000_000, ...(job.blockSize === undefined ? {} : { blockSize: job.blockSize }) },
});
engine.on('durable', ({ tokenCount }) => say({ event: 'durable', tokenCount }));
engine.on('miss', ({ reason, detail }) => say({ event: 'miss', reason, detail }));
engine.on('degraded', ({ code, message }) => say({ event: 'degraded', code, message }));
engine.on('progress', ({ phase, tokens }) => say({ event: 'progress', phase, tokens }));
say({ event: 'ready' });
let computed = job.tokens.length;
for await (const chunk of engine.generate({ tokens: job.tokens, temperature: 0, repetitionPenalty: 1, ignoreEos: true, maxTokens: job.maxTokens })) {
  computed += chunk.tokenIds.length;
  say({
    event: 'tokens',
    ids: chunk.tokenIds,
    computed,
    finishReason: chunk.finishReason ?? null,
    usage: chunk.usage ?? null,
    missReason: chunk.missReason ?? null,
  });
}
const report = await engine.close();
say({ event: 'closed', report });
