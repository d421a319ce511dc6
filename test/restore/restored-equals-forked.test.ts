/**
 * Restored = forked (design section 6): at each restore point the live caches of the run that wrote it are cloned in
 * memory and continued by the steps that a restored run takes. A second engine on the same folder, limited to that
 * point, must give the same logits and the same state, bit for bit, and must have computed nothing before the point.
 *
 * A build in which every restore misses fails here: `cachedTokens` is compared, not bounded.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import { createEngine } from '../../dist/index.js';
import { ROOT, TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

const MODEL = TIDE_5M;
const TOLERANCE = 2e-4;
const LONG = process.env.TIDEMARK_LONG === '1';
const LENGTHS = [1, 255, 256, 257, 511, 1_000, 3_000];
const ids: number[] = JSON.parse(readFileSync(join(MODEL, 'reference.json'), 'utf8')).flatMap((entry: { ids: number[]; greedy: number[] }) => [
  ...entry.ids,
  ...entry.greedy,
]);

function promptOf(length: number): number[] {
  return Array.from({ length }, (_, i) => ids[(i * 11 + length + Math.floor(i / 5)) % ids.length]!);
}

/** Block ends below the prompt's last token, and the point before it. */
function restorePoints(length: number, blockSize: number): number[] {
  const points: number[] = [];
  for (let at = blockSize; at < length; at += blockSize) points.push(at);
  if (length > 1 && points.at(-1) !== length - 1) points.push(length - 1);
  return points;
}

describe.each([{ blockSize: 256, chunk: 512 }])('blocks of $blockSize, chunks of $chunk', ({ blockSize, chunk }) => {
  test.each(LENGTHS)(
    'prompt of %i tokens',
    async (length) => {
      const dir = tempDir();
      const prompt = promptOf(length);
      const options = { model: MODEL, cache: { dir, blockSize, maxBytes: 2_000_000_000 } };
      const writer = await createEngine(options);
      const written = await evaluateTokens(writer, { ids: prompt, chunk, full: true, forks: true });
      expect(written.cachedTokens).toBe(0);
      await writer.close();
      expect(written.forks!.map((fork) => fork.tokenCount)).toEqual(restorePoints(length, blockSize));

      // In the long form each point gets an engine of its own: nothing is shared but the folder.
      let reader = await createEngine(options);
      for (const fork of written.forks!) {
        if (LONG) {
          await reader.close();
          reader = await createEngine(options);
        }
        const restored = await evaluateTokens(reader, { ids: prompt, chunk, full: true, restoreLimit: fork.tokenCount });
        expect(restored.cachedTokens).toBe(fork.tokenCount);
        expect(restored.missReason).toBeNull();
        expect(Buffer.from(restored.logits!.buffer).equals(Buffer.from(fork.logits.buffer))).toBe(true);
        expect(restored.stateDigest).toBe(fork.stateDigest);
      }
      await reader.close();

      const uncached = await createEngine({ model: MODEL, cache: false });
      const other = await evaluateTokens(uncached, { ids: prompt, chunk: 384, full: true, greedy: 1 });
      await uncached.close();
      expect(largestDifference(other.logits!, written.logits!)).toBeLessThanOrEqual(TOLERANCE);
      if (other.gaps[0]! > 2 * TOLERANCE) expect(written.argmax).toBe(other.argmax);
    },
    300_000,
  );
});

function largestDifference(a: Float32Array, b: Float32Array): number {
  let largest = 0;
  for (let i = 0; i < a.length; i++) largest = Math.max(largest, Math.abs(a[i]! - b[i]!));
  return largest;
}
