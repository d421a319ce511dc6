/**
 * Engines for tests: small models, one BLAS thread (tests share the machine), closed after the test that made them.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach } from 'vitest';
import { Tokenizer } from '../../dist/engine-thread/text/tokenizer.js';
import { type CacheOptions, type Chunk, createEngine, type Engine, type EngineEvents, type EngineOptions, type Generation } from '../../dist/index.js';
import { type LeakOptions, watchLeaks } from './leaks.ts';
import { ROOT, TIDE_5M } from './paths.ts';
import { patience } from './patience.ts';

/** Four layers, 320 tokens, context of 4,096: some milliseconds for anything. Its answers are noise, broken UTF-8 included. */
export const TINY: string = join(ROOT, 'test/fixtures/models/tiny-qwen3_5');

const open = new Set<Engine>();

/** An engine on the tiny model, without a cache unless one is asked for. */
export async function openEngine(options: Partial<EngineOptions> = {}): Promise<Engine> {
  const engine = await createEngine({ model: TINY, cache: false, threads: 1, ...options });
  open.add(engine);
  return engine;
}

/** Cache options with a limit that does not depend on the disk. */
export function cacheIn(dir: string, more: CacheOptions = {}): CacheOptions {
  return { dir, maxBytes: 1_000_000_000, blockSize: 16, ...more };
}

/** Closes every engine that the test left open. */
export async function closeEngines(): Promise<void> {
  const engines = [...open];
  open.clear();
  await Promise.all(engines.map((engine) => engine.close({ deadlineMs: 10_000 })));
}

/** The leak checks of `watchLeaks`, after the engines of the test are closed. MLX never ends its stream threads: two for each engine's life. */
export function watchEngines(engines = 4, options: LeakOptions = {}): void {
  watchLeaks({ nativeThreads: 2 * engines, ...options });
  // Hooks run last-registered first.
  afterEach(closeEngines);
}

const referenceIds: number[] = JSON.parse(readFileSync(join(TIDE_5M, 'reference.json'), 'utf8')).flatMap((entry: { ids: number[]; greedy: number[] }) => [
  ...entry.ids,
  ...entry.greedy,
]);

/** Token ids that are valid in both models and differ for each `start`. */
export function promptIds(count: number, start = 0, vocabulary = 320): number[] {
  // Ids below 3 are the end tokens and the padding of both models.
  return Array.from({ length: count }, (_, i) => 3 + (referenceIds[(start * 131 + i * 7 + Math.floor(i / 3)) % referenceIds.length]! % (vocabulary - 3)));
}

/** Reads an answer to its end. */
export async function readAll(generation: Generation): Promise<Chunk[]> {
  const chunks: Chunk[] = [];
  for await (const chunk of generation) chunks.push(chunk);
  return chunks;
}

export const textOf = (chunks: readonly Chunk[]): string => chunks.map((chunk) => chunk.text).join('');
export const idsOf = (chunks: readonly Chunk[]): number[] => chunks.flatMap((chunk) => chunk.tokenIds);

/** Greedy and never ended by the model itself: the same tokens each time. */
export const GREEDY = { temperature: 0, repetitionPenalty: 1, ignoreEos: true } as const;

const tokenizers = new Map<string, Tokenizer>();

function tokenizerOf(model: string): Tokenizer {
  const tokenizer = tokenizers.get(model) ?? Tokenizer.load(model);
  tokenizers.set(model, tokenizer);
  return tokenizer;
}

/** The text of token ids by the model's own tokenizer, the way a whole answer is decoded. */
export function decode(ids: readonly number[], model: string = TINY): string {
  return tokenizerOf(model).decode(ids);
}

export function encode(text: string, model: string = TINY): number[] {
  return tokenizerOf(model).encode(text);
}

export type Heard = { [E in keyof EngineEvents]: EngineEvents[E][] };

const EVENTS = ['durable', 'miss', 'degraded', 'recovered', 'stall', 'warning', 'progress'] as const;

/** Everything the engine says from now on, by event. */
export function listen(engine: Engine): Heard {
  const heard: Heard = { durable: [], miss: [], degraded: [], recovered: [], stall: [], warning: [], progress: [] };
  for (const event of EVENTS) engine.on(event, (payload) => void (heard[event] as unknown[]).push(payload));
  return heard;
}

/** Waits until `holds` is true; throws with `what` when it is not within the limit. */
export async function until(what: string, holds: () => boolean, timeoutMs = patience(15_000)): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!holds()) {
    if (performance.now() > deadline) throw new Error(`still waiting after ${timeoutMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** What a promise rejects with; throws when it resolves. */
export async function rejection(promise: PromiseLike<unknown>): Promise<Error & { code?: string; details?: Record<string, unknown> }> {
  try {
    await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error('the promise was expected to reject, but it resolved');
}
