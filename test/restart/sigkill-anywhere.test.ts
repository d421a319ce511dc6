/**
 * Two-process restart: a process is killed with SIGKILL at seeded positions in prefill and decode; a second one on the
 * same folder gets the prompt and the tokens seen so far.
 *
 * What must not happen: computing again what was reported durable, another continuation than an uncached run gives, or
 * a file left behind that nobody owns.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import { createEngine, type Engine } from '../../dist/index.js';
import { spawnLines } from '../helpers/child.ts';
import { ROOT, TIDE_5M } from '../helpers/paths.ts';
import { seeded } from '../helpers/seed.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

const MODEL = TIDE_5M;
const PROMPT_TOKENS = 1_000;
const ANSWER_TOKENS = 420;
/** Twice the tolerance of the reference: below it the two best tokens may change places. */
const SURE_GAP = 4e-4;
const LONG = process.env.TIDEMARK_LONG === '1';
const EARLY = LONG ? 10 : 2;
const LATE = LONG ? 40 : 8;

let prompt: number[];
let reference: { greedy: number[]; gaps: number[] };

beforeAll(async () => {
  const engine: Engine = await createEngine({ model: MODEL, cache: false });
  try {
    prompt = await tokensOf(engine, PROMPT_TOKENS);
    reference = await evaluateTokens(engine, { ids: prompt, chunk: 512, greedy: ANSWER_TOKENS });
  } finally {
    await engine.close();
  }
}, 120_000);

async function tokensOf(engine: Engine, count: number): Promise<number[]> {
  const ids: number[] = JSON.parse(readFileSync(join(MODEL, 'reference.json'), 'utf8')).flatMap((entry: { ids: number[]; greedy: number[] }) => [
    ...entry.ids,
    ...entry.greedy,
  ]);
  expect(await engine.countTokens({ tokens: ids })).toBe(ids.length);
  return Array.from({ length: count }, (_, i) => ids[(i * 7 + Math.floor(i / 3)) % ids.length]!);
}

/** Positions counted in tokens from the start: a few before the first boundary, most behind it, in prefill and in decode. */
function positions(): number[] {
  const random = seeded('sigkill-anywhere');
  const between = (low: number, high: number) => random.integer(low, high - 1);
  return [
    ...Array.from({ length: EARLY }, () => between(1, 256)),
    ...Array.from({ length: LATE }, (_, i) => (i % 2 === 0 ? between(700, PROMPT_TOKENS) : between(PROMPT_TOKENS + 1, PROMPT_TOKENS + 380))),
  ];
}

let reportedDurable = 0;

describe('SIGKILL at any position, then a second process on the same folder', () => {
  test.each(positions().map((position, i) => ({ position, i })))('killed at token $position', async ({ position }) => {
    const dir = tempDir();
    const first = spawnLines([join(ROOT, 'test/restart/generate-child.mjs'), JSON.stringify({ model: MODEL, dir, tokens: prompt, maxTokens: ANSWER_TOKENS })], {
      timeoutMs: 60_000,
    });
    await first.until((line) => {
      if (line.event === 'progress' && line.phase === 'prefill') return (line.tokens as number) >= position;
      return line.event === 'tokens' && (line.computed as number) >= position;
    });
    first.kill('SIGKILL');
    await first.ended;
    // Lines that were in the pipe when the process died are what an app would have seen.
    await drain(first);
    const seen = first.seen.flatMap((line) => (line.event === 'tokens' ? (line.ids as number[]) : []));
    const durable = Math.max(0, ...first.seen.map((line) => (line.event === 'durable' ? (line.tokenCount as number) : 0)));
    if (durable > 0) reportedDurable++;
    const tokens = [...prompt, ...seen];

    const second = spawnLines([join(ROOT, 'test/restart/generate-child.mjs'), JSON.stringify({ model: MODEL, dir, tokens, maxTokens: 16 })], {
      timeoutMs: 60_000,
    });
    const last = await second.until((line) => line.event === 'tokens' && line.finishReason !== null);
    await second.until((line) => line.event === 'closed');
    await second.ended;
    const { cachedTokens } = last.usage as { cachedTokens: number };
    expect(cachedTokens).toBeGreaterThanOrEqual(Math.min(durable, tokens.length - 1));
    if (durable > 0) expect(cachedTokens).toBeGreaterThan(0);

    const continued = second.seen.flatMap((line) => (line.event === 'tokens' ? (line.ids as number[]) : []));
    expect(continued).toHaveLength(16);
    expect([...seen, ...continued].slice(0, sureLength())).toEqual(reference.greedy.slice(0, Math.min(sureLength(), seen.length + 16)));
    expect(listTree(dir).filter((path) => !isOwned(path))).toEqual([]);
  });

  afterAll(() => {
    // A build that stores nothing must not pass.
    expect(reportedDurable).toBeGreaterThanOrEqual(LATE);
  });
});

function sureLength(): number {
  const at = reference.gaps.findIndex((gap) => gap <= SURE_GAP);
  return at < 0 ? reference.greedy.length : at;
}

async function drain(child: ReturnType<typeof spawnLines>): Promise<void> {
  for (;;) {
    try {
      await child.next(2_000);
    } catch (error) {
      if ((error as Error).message.startsWith('the child ended')) return;
      throw error;
    }
  }
}

function isOwned(path: string): boolean {
  return /^(lock|index\.sqlite(-wal|-shm)?|blocks\/[0-9a-f]{2}\/[0-9a-f]{64}\.(kv|state)\.safetensors|blocks\/([0-9a-f]{2}\/)?|_boundary_snapshots\/)$/.test(
    path,
  );
}
