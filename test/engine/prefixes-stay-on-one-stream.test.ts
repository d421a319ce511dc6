/**
 * Restored prefixes, prefill chunks and aborts beside store jobs: all work of an engine is on its own stream.
 *
 * Must not happen: an operation on another stream (a fence that may never be signalled), an engine that waits for a store job, a
 * clear that does.
 */
import { describe, expect, test } from 'vitest';
import { processRegistry } from '../../dist/host/process-registry.js';
// @ts-expect-error plain JavaScript, shared with the threads
import { Gate } from '../boundary/gate.mjs';
import { runNode } from '../helpers/child.ts';
import { cacheIn, GREEDY, openEngine, promptIds, TINY, until, watchEngines } from '../helpers/engines.ts';
import { tempDir } from '../helpers/temp.ts';
import { closeHubsAfterEach, openHub, QUICK } from '../hub/hub.ts';
// @ts-expect-error plain JavaScript, shared with a child process
import { pairs } from './prefix-scenario.mjs';

watchEngines();
closeHubsAfterEach();

const scenario = () => ({ model: TINY, dir: tempDir(), prompts: [promptIds(150), promptIds(170, 3)], greedy: GREEDY });
const expected = { same: true, cached: [149, 169], aborted: 'AbortError', foreignOps: 0, clearsSkipped: 0, cycles: [], warnings: [] };

describe('two admissions of almost fully cached prompts right after two others ended', () => {
  test('[I101][I102] answer as before, and no operation is bound to another stream, restores and aborts included', async () => {
    expect(await pairs(scenario())).toEqual(expected);
  });

  test('[I101] also with MLX_METAL_FAST_SYNCH=1, which is warned of once', async () => {
    const child = new URL('./prefix-scenario.mjs', import.meta.url).pathname;
    const { code, stdout, stderr } = await runNode([child, JSON.stringify(scenario())], { env: { MLX_METAL_FAST_SYNCH: '1' }, timeoutMs: 60_000 });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(JSON.parse(stdout)).toEqual({ ...expected, warnings: ['MLX_METAL_FAST_SYNCH'] });
  });
});

describe('a store worker that hangs', () => {
  test('[I98][G75] the engine answers, clears and captures on; afterwards everything is stored', async () => {
    const gate = new Gate();
    const dir = tempDir();
    const faults = { module: new URL('../boundary/gate.mjs', import.meta.url).href, data: { gate: gate.buffer, match: '/blocks/' } };
    // The folder's store is opened first, with faults; the engine then shares it.
    await openHub(dir, { ...QUICK, storeInit: { faults } });
    const engine = await openEngine({ cache: cacheIn(dir) });
    gate.hold('fsync');
    await engine.complete({ tokens: promptIds(40), ...GREEDY, maxTokens: 20 });
    await gate.arrived('fsync');
    const { clears } = engine.stats().streams;
    // A clear is due every 512 steps of decode.
    const { tokenIds } = await engine.complete({ tokens: promptIds(40, 5), ...GREEDY, maxTokens: 600, noRestore: true });
    expect(tokenIds).toHaveLength(600);
    expect(engine.stats().streams.clears).toBeGreaterThan(clears);
    expect(engine.stats().streams.clearsSkipped).toBe(0);
    const worker = engine.diagnose().threads.find(({ kind }) => kind === 'store-worker')!;
    expect(worker).toMatchObject({ activity: 'file', detail: expect.stringMatching(/^fsync /) });
    gate.release('fsync');
    await engine.flush();
    expect(engine.stats().boundaries).toMatchObject({ pending: 0, failed: 0 });
  });
});

describe('engines of one process', () => {
  test('[I93][C37] two on one folder share one store worker and one writer; the cap is the default or what was asked for', async () => {
    const dir = tempDir();
    const [one, two] = [await openEngine({ cache: cacheIn(dir) }), await openEngine({ cache: cacheIn(dir, { pendingMaxBytes: 3_000_000 }) })];
    const tokens = promptIds(100);
    await Promise.all([one, two].map((engine) => engine.complete({ tokens, ...GREEDY, maxTokens: 30 })));
    await Promise.all([one.flush(), two.flush()]);
    const kinds = one.diagnose().threads.map(({ kind, alive }) => (alive ? kind : 'dead'));
    expect(kinds.filter((kind) => kind === 'store-worker' || kind === 'snapshot-writer').sort()).toEqual(['snapshot-writer', 'store-worker']);
    const caps = [...processRegistry().running].flatMap((hub) => hub.sessions.map((session) => session.limits.pendingMaxBytes));
    expect(caps).toEqual([512 * 1024 * 1024, 3_000_000]);
    for (const engine of [one, two]) {
      const { captured, durable, dropped } = engine.stats().boundaries;
      expect(Object.values(dropped).reduce((a, b) => a + b, durable)).toBe(captured);
    }
    await until('idle', () => one.stats().store.pendingBytes === 0);
  });
});
