/**
 * `stateCodec` through the whole engine: what is stored is smaller, prefixes come back, and never to an engine of another setting.
 * Must not happen: a rounded state taken for an exact one, a codec that costs an answer.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import type { CacheOptions } from '../../dist/index.js';
import { cacheIn, openEngine, promptIds, rejection, watchEngines } from '../helpers/engines.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchEngines(6);

type Codec = NonNullable<CacheOptions['stateCodec']>;
const prompt = promptIds(120);

/** Evaluates the prompt on the folder, restoring what is there. */
async function run(dir: string, stateCodec: Codec | undefined) {
  const engine = await openEngine({ cache: cacheIn(dir, stateCodec === undefined ? {} : { stateCodec }) });
  const probe = await evaluateTokens(engine, { ids: prompt, chunk: 64, full: true });
  await engine.flush();
  const stats = engine.stats();
  await engine.close();
  return { logits: probe.logits!, digest: probe.stateDigest, cachedTokens: probe.cachedTokens, missReason: probe.missReason, stats };
}

function stateFiles(dir: string): Buffer[] {
  return listTree(dir)
    .filter((path) => path.endsWith('.state.safetensors'))
    .map((path) => readFileSync(join(dir, path)));
}

const largestDifference = (a: Float32Array, b: Float32Array) => a.reduce((worst, value, i) => Math.max(worst, Math.abs(value - b[i]!)), 0);

describe('recurrent state at reduced precision', () => {
  test.each([
    ['bf16', 0.5],
    ['int8', 0.5],
    ['rotated-int8', 0.5],
    ['rotated-int16', 0.01],
  ] as const)('[B30] %s: the prefix comes back, close to what it was', async (codec, tolerance) => {
    const dir = tempDir();
    const written = await run(dir, codec);
    expect(written.cachedTokens).toBe(0);
    expect(written.stats.boundaries.dropped).toEqual({});
    const files = stateFiles(dir);
    expect(files).toHaveLength(8 + 1);
    expect(files.every((file) => file.includes(`\\"codec\\":\\"${codec}\\"`))).toBe(true);
    const restored = await run(dir, codec);
    expect([restored.cachedTokens, restored.missReason]).toEqual([119, null]);
    expect(restored.digest).not.toBe(written.digest);
    expect(largestDifference(restored.logits, written.logits)).toBeLessThan(tolerance);
  });

  test('[B30] an exact engine takes nothing from a rounding one, and the other way round', async () => {
    const dir = tempDir();
    await run(dir, 'bf16');
    const rounded = stateFiles(dir);
    const written = await run(dir, 'fp32');
    expect(written.cachedTokens).toBe(0);
    const restored = await run(dir, undefined);
    expect(restored.cachedTokens).toBe(119);
    expect(Buffer.from(restored.logits.buffer).equals(Buffer.from(written.logits.buffer))).toBe(true);
    expect(restored.digest).toBe(written.digest);
    const exact = stateFiles(dir).filter((file) => !file.includes('codec'));
    expect([rounded.length, exact.length]).toEqual([9, 9]);
    expect(rounded[0]!.length).toBeLessThan(exact[0]!.length);
    expect((await run(dir, 'int8')).cachedTokens).toBe(0);
  });

  test('[B32] the option is checked, and the figures say how often a codec did not fit', async () => {
    const error = await rejection(openEngine({ cache: cacheIn(tempDir(), { stateCodec: 'int4' as Codec }) }));
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', details: { field: 'options.cache.stateCodec' } });
    const { stats } = await run(tempDir(), 'rotated-int8');
    expect(stats.store.codecFallbacks).toBe(0);
  });
});
