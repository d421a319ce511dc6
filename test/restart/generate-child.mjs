/**
 * Child of the restart tests: generates from token ids and writes what it sees as JSON lines, until it ends or is killed.
 * Job on argv: { model, dir, tokens, maxTokens, blockSize, prefillChunk, noRestore? }.
 */
import { createEngine } from '../../dist/index.js';

const { model, dir, tokens, maxTokens, blockSize, prefillChunk, noRestore = false } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const engine = await createEngine({ model, threads: 1, prefillChunk, cache: { dir, blockSize, maxBytes: 2_000_000_000 } });
engine.on('durable', ({ tokenCount }) => say({ event: 'durable', tokenCount }));
engine.on('miss', ({ reason, detail }) => say({ event: 'miss', reason, detail }));
engine.on('degraded', ({ code, message }) => say({ event: 'degraded', code, message }));
engine.on('progress', ({ phase, tokens }) => say({ event: 'progress', phase, tokens }));
say({ event: 'ready' });
let computed = tokens.length;
for await (const chunk of engine.generate({ tokens, temperature: 0, repetitionPenalty: 1, ignoreEos: true, maxTokens, noRestore })) {
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
