/**
 * One process of the restart benchmark: loads the engine, answers one prompt, and says how long the first token took.
 *
 * argv[2]: { model, dir, tokens }. Prints one JSON object.
 */
import { createEngine } from '../../dist/index.js';

const { model, dir, tokens } = JSON.parse(process.argv[2]);
const engine = await createEngine({ model, device: 'cpu', cache: { dir } });
try {
  const generation = engine.generate({ tokens, maxTokens: 8, ignoreEos: true, temperature: 0, repetitionPenalty: 1 });
  const begin = performance.now();
  let firstChunkMs = null;
  for await (const _ of generation) firstChunkMs ??= performance.now() - begin;
  const { tokenIds, usage, timings, missReason } = await generation.result;
  await engine.flush();
  const { bytesRestored } = engine.stats().store;
  console.log(JSON.stringify({ firstChunkMs, tokenIds, usage, timings, missReason, bytesRestored }));
} finally {
  await engine.close();
}
