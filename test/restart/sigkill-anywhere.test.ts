/**
 * Two-process restart: a process is killed with SIGKILL at seeded positions in prefill and decode; a second one on the
 * same folder gets the prompt and the tokens seen so far.
 *
 * What must not happen: computing again what was reported durable, another continuation than an uncached run gives, or
 * a file left behind that nobody owns.
 */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import { type LineChild, spawnLines } from '../helpers/child.ts';
import { openEngine, promptIds, TINY, watchEngines } from '../helpers/engines.ts';
import { ROOT, TIDE_5M } from '../helpers/paths.ts';
import { seeded } from '../helpers/seed.ts';
import { listTree, tempDir } from '../helpers/temp.ts';

watchEngines();

const LONG = process.env.TIDEMARK_LONG === '1';
/** Twice the tolerance of the reference: below it the two best tokens may change places. */
const SURE_GAP = 4e-4;
const CONTINUED = 16;

interface Setting {
  model: string;
  vocabulary: number;
  blockSize: number;
  prefillChunk: number;
  promptTokens: number;
  answerTokens: number;
  /** How many positions lie before the first block end, and how many at least 256 tokens (or two blocks) after the start. */
  early: number;
  late: number;
  /** Share of the late positions in which something must have been reported durable. A tiny model may be done before the disk. */
  durableShare: number;
}

interface Reference {
  greedy: number[];
  /** Tokens of `greedy` that are the same in every correct run. */
  sure: number;
}

interface Outcome {
  durable: number;
  cachedTokens: number;
}

function promptOf(setting: Setting): number[] {
  return promptIds(setting.promptTokens, 5, setting.vocabulary);
}

/** What an uncached run gives. */
async function referenceOf(setting: Setting): Promise<Reference> {
  const engine = await openEngine({ model: setting.model });
  const { greedy, gaps } = await evaluateTokens(engine, { ids: promptOf(setting), chunk: 512, greedy: setting.answerTokens + CONTINUED });
  await engine.close();
  const unsure = gaps.findIndex((gap) => gap <= SURE_GAP);
  return { greedy, sure: unsure < 0 ? greedy.length : unsure };
}

/** Positions counted in tokens from the start. Late ones alternate between prefill and decode. */
function positions(setting: Setting): number[] {
  const { promptTokens, answerTokens, blockSize, early, late } = setting;
  const random = seeded(`sigkill ${setting.model} ${blockSize}`);
  const first = Math.max(256, 2 * blockSize);
  return [
    ...Array.from({ length: early }, () => random.integer(1, blockSize - 1)),
    ...Array.from({ length: late }, (_, i) =>
      i % 2 === 0 ? random.integer(first, promptTokens - 1) : random.integer(promptTokens + 1, promptTokens + answerTokens - 40),
    ),
  ];
}

function start(setting: Setting, job: { dir: string; tokens: number[]; maxTokens: number; noRestore?: boolean }): LineChild {
  const { model, blockSize, prefillChunk } = setting;
  return spawnLines([join(ROOT, 'test/restart/generate-child.mjs'), JSON.stringify({ model, blockSize, prefillChunk, ...job })], { timeoutMs: 60_000 });
}

/**
 * Kills a first process at `position`, then lets a second one go on. `mutant`: a build in which every restore misses; the
 * first process is then killed when something has been reported durable.
 */
async function killAndGoOn(setting: Setting, reference: Reference, position: number, mutant = false): Promise<Outcome> {
  const dir = tempDir();
  const prompt = promptOf(setting);
  const first = start(setting, { dir, tokens: prompt, maxTokens: setting.answerTokens });
  let reported = false;
  await first.until((line) => {
    reported ||= line.event === 'durable';
    if (mutant && !reported) return false;
    if (line.event === 'progress' && line.phase === 'prefill') return (line.tokens as number) >= position;
    return line.event === 'tokens' && (line.computed as number) >= position;
  });
  first.kill('SIGKILL');
  await first.ended;
  // Lines that were in the pipe when the process died are what an app would have seen.
  await drain(first);
  const seen = tokensOf(first);
  const durable = Math.max(0, ...first.seen.map((line) => (line.event === 'durable' ? (line.tokenCount as number) : 0)));
  const tokens = [...prompt, ...seen];

  const second = start(setting, { dir, tokens, maxTokens: CONTINUED, noRestore: mutant });
  const last = await second.until((line) => line.event === 'tokens' && line.finishReason !== null);
  await second.until((line) => line.event === 'closed');
  await second.ended;
  const { cachedTokens } = last.usage as { cachedTokens: number };
  expect(cachedTokens, 'cachedTokens').toBeGreaterThanOrEqual(Math.min(durable, tokens.length - 1));
  if (durable > 0) expect(cachedTokens, 'cachedTokens').toBeGreaterThan(0);

  const continued = tokensOf(second);
  expect(continued).toHaveLength(CONTINUED);
  const whole = [...seen, ...continued];
  const sure = Math.min(reference.sure, whole.length);
  expect(whole.slice(0, sure)).toEqual(reference.greedy.slice(0, sure));
  expect(second.seen.filter((line) => line.event === 'degraded')).toEqual([]);
  expect(listTree(dir).filter((path) => !isOwned(path))).toEqual([]);
  return { durable, cachedTokens };
}

const tokensOf = (child: LineChild): number[] => child.seen.flatMap((line) => (line.event === 'tokens' ? (line.ids as number[]) : []));

async function drain(child: LineChild): Promise<void> {
  for (;;) {
    try {
      await child.next(2_000);
    } catch (error) {
      // A line that was cut by the kill is none.
      if (error instanceof SyntaxError) continue;
      if ((error as Error).message.startsWith('the child ended')) return;
      throw error;
    }
  }
}

function isOwned(path: string): boolean {
  return /^(lock|CACHEDIR\.TAG|\.metadata_never_index|index\.sqlite(-wal|-shm)?|blocks\/[0-9a-f]{2}\/[0-9a-f]{64}\.(kv|state)\.safetensors|blocks\/([0-9a-f]{2}\/)?|_boundary_snapshots\/(_promote\/)?)$/.test(
    path,
  );
}

const settings: (Setting & { name: string })[] = [
  {
    name: 'tide-5m, blocks of 256',
    model: TIDE_5M,
    vocabulary: 4_096,
    blockSize: 256,
    prefillChunk: 512,
    promptTokens: 1_000,
    answerTokens: 420,
    early: LONG ? 10 : 1,
    late: LONG ? 40 : 6,
    durableShare: 1,
  },
  {
    name: 'tide-5m, blocks of 64, chunks of 100',
    model: TIDE_5M,
    vocabulary: 4_096,
    blockSize: 64,
    prefillChunk: 100,
    promptTokens: 600,
    answerTokens: 300,
    early: LONG ? 2 : 0,
    late: LONG ? 10 : 2,
    durableShare: 0.5,
  },
  {
    name: 'tiny, blocks of 16, chunks of 48',
    model: TINY,
    vocabulary: 320,
    blockSize: 16,
    prefillChunk: 48,
    promptTokens: 600,
    answerTokens: 300,
    early: LONG ? 2 : 1,
    late: LONG ? 20 : 4,
    durableShare: 0.25,
  },
];

describe.each(settings)('SIGKILL, then a second process on the same folder: $name', ({ name: _, ...setting }) => {
  let reference: Reference;
  let reportedDurable = 0;

  beforeAll(async () => {
    reference = await referenceOf(setting);
    // Otherwise the comparison of continuations would say little.
    expect(reference.sure).toBeGreaterThan(60);
  });

  test.each(positions(setting))('killed at token %i', async (position) => {
    const { durable } = await killAndGoOn(setting, reference, position);
    if (durable > 0) reportedDurable++;
  });

  afterAll(() => {
    // A build that stores nothing must not pass.
    expect(reportedDurable).toBeGreaterThanOrEqual(setting.late * setting.durableShare);
  });
});

describe('this suite', () => {
  test('fails for a build in which every restore misses', async () => {
    const setting = settings.at(-1)!;
    const reference = await referenceOf(setting);
    await expect(killAndGoOn(setting, reference, setting.promptTokens + 50, true)).rejects.toThrow(/cachedTokens/);
  });
});
