/**
 * Restored = forked (design section 6): at each restore point the live caches of the run that wrote it are cloned in
 * memory and continued by the steps that a restored run takes. A second engine on the same folder, limited to that
 * point, must give the same logits and the same state, bit for bit, and must have computed nothing before the point.
 */
import { expect } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import type { Engine, EngineOptions, Persist } from '../../dist/index.js';
import { openEngine, promptIds } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

const TOLERANCE = 2e-4;
export const LONG = process.env.TIDEMARK_LONG === '1';
export const LIMIT_MS = 300_000;

export interface Scenario {
  model: string;
  vocabulary: number;
  blockSize: number;
  chunk: number;
  length: number;
  /** Greedy tokens behind the prompt. */
  greedy: number;
  persist?: Persist;
  /** Largest difference to a run that cuts the prompt otherwise. */
  tolerance?: number;
  /** What the second engine restores at most, for a restore point: a build whose restores miss has 0 here. */
  limitFor?: (point: number) => number;
}

/** Block ends below the prompt's last token, and the point before it; then block ends in the answer, and its last computed token. */
function restorePoints({ length, blockSize, greedy, persist }: Scenario): number[] {
  const end = length + greedy;
  const points = new Set<number>();
  if (persist !== 'finish') for (let at = blockSize; at < end; at += blockSize) points.add(at);
  if (length > 1) points.add(length - 1);
  if (greedy > 0) points.add(end - 1);
  return [...points].sort((a, b) => a - b);
}

const equal = (a: Float32Array, b: Float32Array): boolean =>
  Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength));

/** Runs the scenario and checks every restore point; gives the points that were seen. */
export async function restoredEqualsForked(scenario: Scenario): Promise<number[]> {
  const { model, vocabulary, blockSize, chunk, length, greedy, persist = 'boundary', tolerance = TOLERANCE, limitFor = (point: number) => point } = scenario;
  const prompt = promptIds(length, length, vocabulary);
  const options: Partial<EngineOptions> = { model, cache: { dir: tempDir(), blockSize, maxBytes: 2_000_000_000, persist } };
  const writer = await openEngine(options);
  const written = await evaluateTokens(writer, { ids: prompt, chunk, greedy, full: true, forks: true });
  expect(written.cachedTokens).toBe(0);
  await writer.close();
  // In 'finish' mode the steps are the same, so forks are taken at the same points; only the two ends are stored.
  const points = restorePoints(scenario);
  const forks = written.forks!.filter((fork) => points.includes(fork.tokenCount));
  expect(forks.map((fork) => fork.tokenCount)).toEqual(points);

  const reader = new Reader(options);
  for (const fork of forks) {
    const ids = fork.tokenCount < length - 1 || greedy === 0 || fork.tokenCount === length - 1 ? prompt : [...prompt, ...written.greedy];
    const restored = await evaluateTokens(await reader.engine(), { ids, chunk, full: true, restoreLimit: limitFor(fork.tokenCount) });
    expect(restored.cachedTokens, `${restored.missReason ?? ''} cachedTokens`.trim()).toBe(fork.tokenCount);
    expect(restored.missReason).toBeNull();
    expect(equal(restored.logits!, fork.logits), `logits restored at ${fork.tokenCount}`).toBe(true);
    expect(restored.stateDigest, `state restored at ${fork.tokenCount}`).toBe(fork.stateDigest);
  }
  await reader.close();

  const uncached = await openEngine({ model, cache: false });
  const other = await evaluateTokens(uncached, { ids: prompt, chunk: Math.floor(chunk * 0.75), full: true, greedy: 1 });
  await uncached.close();
  expect(largestDifference(other.logits!, written.logits!)).toBeLessThanOrEqual(tolerance);
  if (other.gaps[0]! > 2 * tolerance) expect(written.argmax).toBe(other.argmax);
  return points;
}

/** The second engine. In the long form each point gets one of its own: nothing is shared but the folder. */
class Reader {
  readonly #options: Partial<EngineOptions>;
  #engine: Engine | null = null;

  constructor(options: Partial<EngineOptions>) {
    this.#options = options;
  }

  async engine(): Promise<Engine> {
    if (LONG) await this.close();
    this.#engine ??= await openEngine(this.#options);
    return this.#engine;
  }

  async close(): Promise<void> {
    await this.#engine?.close();
    this.#engine = null;
  }
}

function largestDifference(a: Float32Array, b: Float32Array): number {
  let largest = 0;
  for (let i = 0; i < a.length; i++) largest = Math.max(largest, Math.abs(a[i]! - b[i]!));
  return largest;
}
