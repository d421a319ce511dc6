/**
 * Eight requests of mixed lengths that decode together, against each of them alone.
 *
 * Must not happen: a row that sees another's tokens or its own padding, a boundary taken from a batch that differs from the row,
 * an answer of a deterministic engine that depends on who else was there or on what was cached.
 */
import { describe, expect, test } from 'vitest';
import { evaluateTokens } from '../../dist/host/evaluate.js';
import type { Engine, EngineOptions } from '../../dist/index.js';
import type { Probe } from '../../dist/shared/engine-protocol.js';
import { cacheIn, GREEDY, idsOf, listen, openEngine, promptIds, readAll, TINY, until, watchEngines } from '../helpers/engines.ts';
import { TIDE_5M } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

/** Of one logit, between a pass of one row and one of several. */
const TOLERANCE = 2e-4;
const LIMIT_MS = 180_000;

const models = [
  { name: 'tiny', model: TINY, vocabulary: 320, blockSize: 16 },
  { name: 'tide-5m', model: TIDE_5M, vocabulary: 4_096, blockSize: 32 },
];

interface Wanted {
  ids: number[];
  greedy: number;
}

/** Lengths around chunk and block borders, one token alone, and answers that end at different times. */
function mixed(vocabulary: number): Wanted[] {
  const lengths = [1, 17, 255, 64, 300, 33, 128, 5];
  return lengths.map((length, i) => ({ ids: promptIds(length, 3 * i + 1, vocabulary), greedy: 12 + ((i * 7) % 29) }));
}

const evaluate = (engine: Engine, { ids, greedy }: Wanted, forks = false) => evaluateTokens(engine, { ids, greedy, chunk: 48, full: true, forks });

/** All of them, one behind the other: the engine has nobody else then. */
async function inTurn(engine: Engine, wanted: readonly Wanted[]): Promise<Probe[]> {
  const probes: Probe[] = [];
  for (const one of wanted) probes.push(await evaluate(engine, one));
  return probes;
}

const same = (a: Float32Array, b: Float32Array): boolean =>
  Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength));

function expectSameBits(probes: readonly Probe[], expected: readonly Probe[]): void {
  probes.forEach((probe, i) => {
    expect(same(probe.logits!, expected[i]!.logits!), `logits of row ${i}`).toBe(true);
    expect({ greedy: probe.greedy, gaps: probe.gaps }, `row ${i}`).toEqual({ greedy: expected[i]!.greedy, gaps: expected[i]!.gaps });
  });
}

/** Greedy tokens are equal up to where rounding may decide, and so are the gaps between the two best logits. */
function expectSameAnswer(batched: Probe, alone: Probe, row: string): number {
  let compared = 0;
  for (; compared < alone.greedy.length; compared++) {
    const gap = alone.gaps[compared]!;
    expect(Math.abs(batched.gaps[compared]! - gap), `${row}: gap at token ${compared}`).toBeLessThanOrEqual(2 * TOLERANCE);
    if (batched.greedy[compared] !== alone.greedy[compared]) {
      expect(gap, `${row}: another token at ${compared}`).toBeLessThanOrEqual(2 * TOLERANCE);
      break;
    }
  }
  return compared;
}

describe.each(models)('$name', ({ model, vocabulary, blockSize }) => {
  const wanted = mixed(vocabulary);

  test(
    'eight together give what each gives alone, in far fewer passes',
    async () => {
      const engine = await openEngine({ model, maxNumSeqs: 8 });
      const alone = await inTurn(engine, wanted);
      const before = engine.stats();
      expect(before.passes.decode).toBe(before.tokens.decoded - wanted.length);
      const batched = await Promise.all(wanted.map((one) => evaluate(engine, one)));
      const compared = batched.map((probe, i) => {
        // Prefill is by itself: not a bit may differ.
        expect(same(probe.logits!, alone[i]!.logits!), `row ${i}`).toBe(true);
        expect(probe.stateDigest, `row ${i}`).toBe(alone[i]!.stateDigest);
        return expectSameAnswer(probe, alone[i]!, `row ${i}`);
      });
      // Ties are rare: nearly everything is compared.
      const all = wanted.reduce((sum, { greedy }) => sum + greedy, 0);
      expect(compared.reduce((a, b) => a + b)).toBeGreaterThan(0.9 * all);
      expect(engine.stats().passes.decode - before.passes.decode).toBeLessThan(all / 3);
    },
    LIMIT_MS,
  );

  test(
    'deterministic: together, alone, cached and not, bit for bit',
    async () => {
      const options: Partial<EngineOptions> = { model, deterministic: true, maxNumSeqs: 8 };
      const engine = await openEngine({ ...options, cache: cacheIn(tempDir(), { blockSize, persist: 'off' }) });
      const alone = await inTurn(engine, wanted);
      const together = await Promise.all(wanted.map((one) => evaluate(engine, one)));
      expectSameBits(together, alone);
      await engine.close();

      const cached = await openEngine({ ...options, cache: cacheIn(tempDir(), { blockSize }) });
      const cold = await Promise.all(wanted.map((one) => evaluate(cached, one)));
      await cached.flush();
      const warm = await Promise.all(wanted.map((one) => evaluate(cached, one)));
      expectSameBits(cold, alone);
      expectSameBits(warm, alone);
      // Whole blocks only, on the grid that a cold run has.
      expect(warm.map((probe) => probe.cachedTokens)).toEqual(wanted.map(({ ids }) => Math.floor((ids.length - 1) / blockSize) * blockSize));
    },
    LIMIT_MS,
  );

  test(
    'boundaries passed in a batch are stored as the row alone: what is restored from them equals the row continued by itself',
    async () => {
      const options: Partial<EngineOptions> = { model, cache: cacheIn(tempDir(), { blockSize }) };
      const writer = await openEngine({ ...options, maxNumSeqs: 8 });
      const heard = listen(writer);
      const answers = await Promise.all(wanted.map((one) => evaluate(writer, one, true)));
      await writer.flush();
      expect(writer.stats().boundaries.dropped).toEqual({});
      expect(heard.warning).toEqual([]);
      await writer.close();

      const reader = await openEngine(options);
      let points = 0;
      for (const [i, { forks, greedy }] of answers.entries()) {
        const { ids } = wanted[i]!;
        const decodedAt = forks!.filter(({ tokenCount }) => tokenCount >= ids.length);
        for (const fork of decodedAt) {
          const restored = await evaluateTokens(reader, { ids: [...ids, ...greedy], chunk: 48, full: true, restoreLimit: fork.tokenCount });
          const what = `row ${i} restored at ${fork.tokenCount}`;
          expect(restored.cachedTokens, what).toBe(fork.tokenCount);
          expect(restored.stateDigest, what).toBe(fork.stateDigest);
          expect(same(restored.logits!, fork.logits), what).toBe(true);
          points++;
        }
      }
      expect(points).toBeGreaterThan(1.5 * wanted.length);
    },
    LIMIT_MS,
  );
});

describe('coming and going', () => {
  test('rows join while others decode, pause for their reader, are aborted, and the last goes on alone', async () => {
    const engine = await openEngine({ maxNumSeqs: 4, maxUnreadChunks: 4 });
    const request = (i: number, maxTokens: number) => ({ tokens: promptIds(20 + 9 * i, i), ...GREEDY, maxTokens });
    const expected = [];
    for (let i = 0; i < 4; i++) expected.push((await engine.complete(request(i, 120))).tokenIds);
    const idleBytes = engine.stats().memory.activeBytes;

    const slow = engine.generate(request(0, 120));
    const first = (await slow.next()).value!;
    const aborted = engine.generate(request(1, 120));
    await aborted.next();
    const others = [engine.complete(request(2, 120)), engine.complete(request(3, 120))];
    await aborted.return!();
    await Promise.all(others);
    expect((await others[0]!).tokenIds).toEqual(expected[2]);
    expect((await others[1]!).tokenIds).toEqual(expected[3]);
    expect(idsOf([first, ...(await readAll(slow))])).toEqual(expected[0]);
    await until('the aborted one is gone', () => engine.stats().requests.running === 0);
    expect(engine.stats().requests).toEqual({ queued: 0, running: 0, finished: 7, aborted: 1, failed: 0 });
    // No row stays behind.
    await until('memory is as before', () => engine.stats().memory.activeBytes <= idleBytes);
  });

  test('a long prompt that comes later does not stop the answers that run', async () => {
    const engine = await openEngine({ maxNumSeqs: 2, prefillChunk: 16 });
    const order: string[] = [];
    const running = engine.generate({ tokens: promptIds(10), ...GREEDY, maxTokens: 300 });
    await running.next();
    engine.on('progress', () => order.push('chunk'));
    const late = engine.complete({ tokens: promptIds(800, 3), ...GREEDY, maxTokens: 2 }).then(() => order.push('late'));
    for await (const _ of running) order.push('token');
    await late;
    const chunks = order.slice(order.indexOf('chunk'), order.lastIndexOf('chunk'));
    expect(chunks.filter((what) => what === 'token').length).toBeGreaterThan(20);
  });

  test('a short prompt is not held up by a long one', async () => {
    const engine = await openEngine({ maxNumSeqs: 2, prefillChunk: 16 });
    const order: string[] = [];
    const long = engine.complete({ tokens: promptIds(1_500), ...GREEDY, maxTokens: 1 }).then(() => order.push('long'));
    const short = engine.complete({ tokens: promptIds(40, 3), ...GREEDY, maxTokens: 1 }).then(() => order.push('short'));
    await Promise.all([long, short]);
    expect(order).toEqual(['short', 'long']);
  });
});
