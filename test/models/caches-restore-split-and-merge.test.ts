// A cache that was captured, restored, cut elsewhere, merged or extracted must continue as the one that was not.
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ROOT, TIDE_5M } from '../helpers/paths.ts';
import { difference, scenario } from './scenario.ts';

const TINY = join(ROOT, 'test/fixtures/models/tiny-qwen3_5');
const FILE = 'cache-scenarios.mjs';
const ids = Array.from({ length: 150 }, (_, i) => (i * 71 + 13) % 320);

describe('restored = forked, bit for bit', () => {
  interface Fork {
    logits: boolean;
    state: boolean;
    offsets: number[];
    capacity: (string | number | boolean)[];
    parts: string[][];
  }

  test.each(['float32', 'model'])('%s', async (compute) => {
    const counts = [1, 15, 16, 17, 100, 255, 256, 257, 600];
    const forks = await scenario<Fork[]>(FILE, 'restoredEqualsFork', { dir: TINY, compute, counts, block: 16 });
    forks.forEach((fork, i) => {
      const count = counts[i]!;
      expect(fork, `${count} tokens`).toMatchObject({ logits: true, state: true, offsets: [count, count, count, count] });
      expect(fork.capacity).toEqual([count, 256, Math.ceil(count / 256) * 256]);
    });
    expect(forks[3]!.parts).toEqual([
      ['ArraysCache none', 'KVCache slice 0,16', 'ArraysCache none', 'KVCache slice 0,16'],
      ['ArraysCache none', 'KVCache slice 16,17', 'ArraysCache none', 'KVCache slice 16,17'],
    ]);
  });

  test('the demo model, blocks of 256', async () => {
    const forks = await scenario<Fork[]>(FILE, 'restoredEqualsFork', { dir: TIDE_5M, compute: 'float32', counts: [255, 256, 300, 512], block: 256 });
    for (const fork of forks) expect(fork).toMatchObject({ logits: true, state: true });
  });
});

test('state carried over any split gives the same answer', async () => {
  const ways = [[150], [1, 149], [149, 1], [32, 32, 32, 32, 22], [33, 31, 2, 64, 20], [7, 7, 7, 129], Array<number>(150).fill(1), [100, 3, 3, 3, 41]];
  const results = await scenario<{ difference: number; greedy: number[] }[]>(FILE, 'splits', { dir: TINY, ids, ways, tokens: 16 });
  for (const result of results) {
    expect(result.difference).toBeLessThan(1e-4);
    expect(result.greedy).toEqual(results[0]!.greedy);
  }
});

test('logits of all tokens are the last ones of every prefix', async () => {
  const differences = await scenario<number[]>(FILE, 'allLogits', { dir: TINY, ids: ids.slice(0, 40) });
  expect(difference(differences, Array<number>(40).fill(0))).toBeLessThan(1e-4);
});

test('rows of different lengths decode together as they do alone, while one leaves and one joins', async () => {
  const prompts = [ids.slice(0, 40), ids.slice(3, 10), ids.slice(0, 150), ids.slice(20, 21), ids.slice(50, 90)];
  const { alone, batched, offsets } = await scenario<{ alone: number[][]; batched: number[][]; offsets: number[][] }>(FILE, 'raggedBatch', {
    dir: TINY,
    prompts,
    steps: 12,
  });
  for (const layer of offsets) expect(layer).toEqual([40, 7, 150, 1]);
  batched.forEach((tokens, row) => {
    expect(tokens, `row ${row}`).toEqual(alone[row]!.slice(0, tokens.length));
  });
});

test('rows of a batch may also take several tokens in one step', async () => {
  const prompts = [ids.slice(0, 40), ids.slice(3, 10), ids.slice(20, 21)];
  const next = [ids.slice(60, 65), ids.slice(70, 75), ids.slice(80, 85)];
  const differences = await scenario<number[]>(FILE, 'severalTokensPerRow', { dir: TINY, prompts, next });
  expect(Math.max(...differences)).toBeLessThan(1e-4);
});

test('a buffer with room is written in place, with captures in between and beside a clone', async () => {
  expect(await scenario(FILE, 'inPlace', { dir: TINY, steps: 100 })).toEqual({ addresses: 1, apart: true });
});

test('what does not fit is refused', async () => {
  const results = await scenario<string[][]>(FILE, 'refusals', { dir: TINY });
  expect(Object.fromEntries(results.map(([what, ...rest]) => [what, rest.join(' ').trim()]))).toEqual({
    'kv ahead of the layer': 'INVALID_ARGUMENT offset',
    'empty range': 'INVALID_ARGUMENT offset',
    'state before its place': 'INVALID_ARGUMENT offset',
    offsets: 'INVALID_ARGUMENT offset',
    'a batch': 'INVALID_ARGUMENT batch',
    sound: 'ok',
    'a block missing': 'FORMAT_INVALID',
    'the first block missing': 'FORMAT_INVALID',
    'no state': 'FORMAT_INVALID',
    'state of another place': 'FORMAT_INVALID',
    nothing: 'FORMAT_INVALID',
    'too few layers': 'FORMAT_INVALID',
    'another class': 'FORMAT_INVALID',
    'another type': 'FORMAT_INVALID',
    'another shape': 'FORMAT_INVALID',
    'another step': 'FORMAT_INVALID',
    'an absurd capacity': 'FORMAT_INVALID',
  });
});

test('trimming takes tokens from a sliceable layer only, and ends captures made before', async () => {
  expect(await scenario(FILE, 'trimming', { dir: TINY })).toEqual({
    kv: true,
    offset: 30,
    tooMany: false,
    negative: false,
    whole: false,
    nothing: true,
    code: 'INVALID_ARGUMENT',
  });
});
