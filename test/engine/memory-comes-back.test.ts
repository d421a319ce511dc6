/**
 * What requests take is given back: device memory, pending bytes, request slots.
 *
 * Must not happen: memory that grows with the number of requests, however they ended.
 */
import { describe, expect, test } from 'vitest';
import type { Engine } from '../../dist/index.js';
import { cacheIn, GREEDY, openEngine, promptIds, rejection, until, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

const request = { tokens: promptIds(200), ...GREEDY, maxTokens: 20 };

/** Bytes of the device in use when nothing runs. */
async function atRest(engine: Engine): Promise<number> {
  await until('nothing runs', () => engine.stats().requests.running + engine.stats().requests.queued === 0);
  // Figures are written after the step that ended the last request; this call comes after it.
  await engine.countTokens({ tokens: [3] });
  return engine.stats().memory.activeBytes;
}

describe.each([{ cache: false }, { cache: true }])('cache $cache', ({ cache }) => {
  test('device memory is that of the weights after every kind of request', async () => {
    const engine = await openEngine({ maxNumSeqs: 2, ...(cache ? { cache: cacheIn(tempDir()) } : {}) });
    await engine.complete(request);
    const weights = await atRest(engine);
    expect(weights).toBeGreaterThan(100_000);
    for (let i = 0; i < 12; i++) {
      await Promise.all([engine.complete({ ...request, tokens: promptIds(200, i) }), engine.complete(request)]);
      const generation = engine.generate({ ...request, tokens: promptIds(300, i), maxTokens: 1_000 });
      await generation.next();
      await generation.return!();
      await rejection(engine.complete({ ...request, maxTokens: 1_000, timeoutMs: 1 + i }));
      await rejection(engine.complete({ ...request, tokens: [400] }));
      await engine.prefill({ tokens: promptIds(100, i) });
      expect(await atRest(engine)).toBe(weights);
    }
    await engine.flush();
    expect(engine.stats().store.pendingBytes).toBe(0);
    expect(engine.stats().requests).toMatchObject({ queued: 0, running: 0, failed: 0 });
  });
});
