/**
 * Two requests end, and at once two others with almost fully cached prompts are admitted; one more is aborted while all this
 * goes on. What came of it, as one record. Used by a test in its own process and by a child with another environment.
 */
import { createEngine } from '../../dist/index.js';

/** @param options model, cache folder and prompts (two token lists) */
export async function pairs({ model, dir, prompts, greedy }) {
  const engine = await createEngine({ model, threads: 1, maxNumSeqs: 2, prefillChunk: 64, cache: { dir, blockSize: 16, maxBytes: 1_000_000_000 } });
  const warnings = [];
  engine.on('warning', ({ code }) => warnings.push(code));
  const ask = (tokens, more = {}) => engine.complete({ tokens, ...greedy, maxTokens: 12, ...more });
  const first = await Promise.all(prompts.map((tokens) => ask(tokens)));
  // No pause: the store of the first pair is still under way.
  const second = await Promise.all(prompts.map((tokens) => ask(tokens)));
  const abort = new AbortController();
  const aborted = ask([...prompts[0], ...prompts[1]], { maxTokens: 200, signal: abort.signal }).catch((error) => error.name);
  const third = ask(prompts[1], { maxTokens: 40 });
  setTimeout(() => abort.abort(), 5);
  await Promise.all([aborted, third]);
  const ids = [first, second].map((answers) => answers.map(({ tokenIds }) => tokenIds));
  const result = {
    same: JSON.stringify(ids[0]) === JSON.stringify(ids[1]),
    cached: second.map(({ usage }) => usage.cachedTokens),
    aborted: await aborted,
    foreignOps: engine.stats().streams.foreignOps,
    clearsSkipped: engine.stats().streams.clearsSkipped,
    cycles: engine.diagnose().cycles,
    warnings,
  };
  await engine.close();
  return result;
}

if (process.argv[2] !== undefined) process.stdout.write(`${JSON.stringify(await pairs(JSON.parse(process.argv[2])))}\n`);
