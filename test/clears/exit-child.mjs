/** Child of each-exit-clears.test.ts: an engine that goes one way out of prefill or decode, and how many clears came with it. argv: { scenario, model } */
import { createEngine } from '../../dist/index.js';

const { scenario, model } = JSON.parse(process.argv[2]);
const CHUNK = 64;
const engine = await createEngine({ model, threads: 1, prefillChunk: CHUNK, cache: false });
const ids = (count, step = 37) => Array.from({ length: count }, (_, i) => 3 + ((i * step + Math.floor(i / 5)) % 300));
const greedy = { temperature: 0, repetitionPenalty: 1, ignoreEos: true };
const clears = () => engine.stats().streams.clears;
const lost = [];
engine.on('degraded', ({ code }) => lost.push(code));
const codeOf = (promise) =>
  promise.then(
    () => 'answered',
    (error) => (error.name === 'TidemarkError' ? error.code : error.name),
  );

const scenarios = {
  /** Four chunks, the last of them a short one; the answer's end schedules a clear that does not come without further steps. */
  success: () => codeOf(engine.complete({ tokens: ids(3 * CHUNK + 5), ...greedy, maxTokens: 2 })),
  async deferred() {
    await engine.complete({ tokens: ids(10), ...greedy, maxTokens: 3 });
    if (clears() !== before) return 'a clear came with the end of the answer';
    return codeOf(engine.complete({ tokens: ids(10), ...greedy, maxTokens: 20 }));
  },
  decode: () => codeOf(engine.complete({ tokens: ids(10), ...greedy, maxTokens: 600 })),
  async abort() {
    const abort = new AbortController();
    engine.on('progress', () => abort.abort());
    const code = await codeOf(engine.complete({ tokens: ids(3_000), ...greedy, maxTokens: 2, signal: abort.signal }));
    await settled();
    // What chunks have cleared is not the question here.
    chunks = Math.floor(engine.stats().tokens.prefilled / CHUNK);
    return code;
  },
  error: () => codeOf(engine.complete({ tokens: ids(20), ...greedy, maxTokens: 2 })),
  memory: () => codeOf(engine.complete({ tokens: ids(20), ...greedy, maxTokens: 2 })),
  async lost() {
    const first = await codeOf(engine.complete({ tokens: ids(CHUNK), ...greedy, maxTokens: 2 }));
    return [first, await codeOf(engine.complete({ tokens: ids(10), ...greedy, maxTokens: 2 })), engine.health().status, ...lost].join(' ');
  },
};

/** The request has ended on the engine's thread too, and that step is over. */
async function settled() {
  while (engine.stats().requests.running > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  if (engine.health().status !== 'dead') await engine.countTokens({ tokens: [3] });
}

let chunks = 0;
const before = clears();
const ended = await scenarios[scenario]();
await settled();
process.stdout.write(`${JSON.stringify({ ended, clears: clears() - before - chunks, foreignOps: engine.stats().streams.foreignOps })}\n`);
await engine.close();
