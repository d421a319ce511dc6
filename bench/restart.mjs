/**
 * Time to the first token of a prompt of 3,000 tokens, in a process that has it in its cache folder (written by the process
 * before) against one that has not. The engine is loaded before the clock starts; the time ends with the first chunk.
 */
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { median, round, seededTokens, verdict } from './lib/ratio.mjs';

const MODEL = fileURLToPath(new URL('../models/tide-5m', import.meta.url));
const CHILD = fileURLToPath(new URL('./lib/restart-child.mjs', import.meta.url));
const PROMPT = 3000;
const FLOOR = 5;

export async function run({ pairs, log }) {
  const count = pairs ?? 20;
  const dir = mkdtempSync(join(tmpdir(), 'tidemark-bench-restart-'));
  const info = { loadAverage: [loadavg()], promptTokens: PROMPT };
  const cold = [];
  const warm = [];
  const again = [];
  try {
    for (let i = 0; i < count; i++) {
      const tokens = seededTokens(PROMPT, 500 + i);
      cold.push(await answer(dir, tokens));
      warm.push(await answer(dir, tokens));
      again.push(await answer(dir, tokens));
      requireRight(cold[i], 0);
      // The last token of a prompt is always computed: its logits are the answer's first.
      for (const restarted of [warm[i], again[i]]) requireRight(restarted, PROMPT - 1, cold[i].tokenIds);
      log(`pair ${i + 1} of ${count}: cold ${round(cold[i].firstChunkMs)} ms, after the restart ${round(warm[i].firstChunkMs)} ms`);
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
  info.loadAverage.push(loadavg());
  const middle = (runs, of) => round(median(runs.map(of)));
  const result = {
    ...verdict(
      `first token of ${PROMPT} tokens, cold against restarted`,
      cold.map((run, i) => run.firstChunkMs / warm[i].firstChunkMs),
      again.map((run, i) => run.firstChunkMs / warm[i].firstChunkMs),
      { atLeast: FLOOR },
      'times',
    ),
    milliseconds: {
      coldFirstChunk: middle(cold, (run) => run.firstChunkMs),
      restartedFirstChunk: middle(warm, (run) => run.firstChunkMs),
      restore: middle(warm, (run) => run.timings.restoreMs),
      restartedPrefill: middle(warm, (run) => run.timings.prefillMs),
    },
    bytesRestored: warm[0].bytesRestored,
    cachedTokens: warm[0].usage.cachedTokens,
  };
  return { results: [result], info };
}

async function answer(dir, tokens) {
  const job = JSON.stringify({ model: MODEL, dir, tokens });
  try {
    const { stdout } = await promisify(execFile)(process.execPath, [CHILD, job], { timeout: 120_000, maxBuffer: 1 << 24 });
    return JSON.parse(stdout);
  } catch (error) {
    throw new Error(`a process of the benchmark failed (${error.signal ?? error.code}): ${String(error.stderr ?? '').trim() || error.message}`);
  }
}

/** A fast answer that is wrong, or did not come from the cache, is no figure. */
function requireRight(run, cachedTokens, expected = run.tokenIds) {
  if (run.usage.cachedTokens !== cachedTokens)
    throw new Error(`${run.usage.cachedTokens} tokens came from the cache, expected ${cachedTokens} (${run.missReason ?? 'no miss'})`);
  if (run.tokenIds.join() !== expected.join()) throw new Error(`the restarted process answered ${run.tokenIds}, the first one ${expected}`);
}
