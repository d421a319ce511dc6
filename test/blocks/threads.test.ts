// Engine, snapshot writer and store worker as real threads; the store worker as the one task of a Piscina pool.
// Must not happen: an engine that has to turn its event loop for its store to go on; a loop that waits for the other.
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { listTree, tempDir } from '../helpers/temp.ts';
import { tokensOf } from './fixtures.ts';
import { holdAt, startHub } from './hub.ts';

const TOKENS = tokensOf(5 * 16 + 3);

describe('a store worker that dies', () => {
  it.each([
    ['create', '/blocks/'],
    ['fsync', '/blocks/'],
    ['rename', '_boundary_snapshots'],
    ['rename', '/blocks/'],
    ['syncFolder', '/blocks/'],
  ])('R18: killed at %s of %s, its successor ends what it had begun', async (operation, match) => {
    const hold = holdAt(operation, match);
    const hub = startHub(tempDir('hub'), hold.faults);
    const memory = hub.session();
    const engine = hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'settle' },
      { step: 'restore', tokens: TOKENS },
    ]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    await hub.killStore();
    hub.startStore();
    const [, settled, restored] = await engine;
    expect(settled).toMatchObject({ inFlight: 0, held: 0, ledger: { captured: 6, durable: 6 } });
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
    expect(listTree(hub.cacheDir).filter((name) => name.endsWith('.tmp') || (name.includes('_promote/') && name.endsWith('s')))).toEqual([]);
  });

  it('a restore that it was serving ends as a miss and the next one works', async () => {
    const hub = startHub();
    const memory = hub.session();
    await hub.engine(memory, [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }, { step: 'settle' }]);
    await hub.killStore();
    const hold = holdAt('pread', '/blocks/');
    hub.startStore(hold.faults);
    const engine = hub.engine(memory, [
      { step: 'restore', tokens: TOKENS },
      { step: 'restore', tokens: TOKENS },
    ]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    await hub.killStore();
    hub.startStore();
    const [first, second] = await engine;
    expect(first).toMatchObject({ type: 'miss', reason: 'worker' });
    expect(second).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });
});

describe('a disk that hangs', () => {
  it('[G75] the engine goes on; a restore that cannot be served ends at its deadline, and works afterwards', async () => {
    const hold = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), hold.faults);
    const memory = hub.session();
    const [stored] = await hub.engine(memory, [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    const [missed] = await hub.engine(memory, [{ step: 'restore', tokens: TOKENS, deadlineMs: 300 }]);
    expect(new Set(stored as unknown as string[])).toEqual(new Set(['saved', 'queued']));
    expect(missed).toMatchObject({ type: 'miss', reason: 'deadline' });
    Atomics.store(hold.words, 0, 2);
    const [again] = await hub.engine(memory, [{ step: 'restore', tokens: TOKENS }]);
    expect(again).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });

  it('diagnose can name the path: the thread’s activity says which operation it is in', async () => {
    const hold = holdAt('fsync', '/blocks/');
    const hub = startHub(tempDir('hub'), hold.faults);
    void hub.engine(hub.session(), [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }]);
    await hub.until(() => Atomics.load(hold.words, 0) === 1, 'the store worker to be held');
    const thread = new ThreadTable(hub.shared.threads).list().find((info) => info.kind === 'store-worker')!;
    expect(thread.activity).toBe('file');
    expect(thread.detail).toMatch(/^fsync .*blocks/);
    Atomics.store(hold.words, 0, 2);
    await hub.stop();
  });
});

describe('store and restore over real threads', () => {
  it('[D58][F70][I93] what an engine stores becomes durable and comes back, without a turn of its loop', async () => {
    const hub = startHub();
    const memory = hub.session();
    const [stored, settled, restored, known] = await hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'settle' },
      { step: 'restore', tokens: TOKENS },
      { step: 'lookUp', tokens: TOKENS },
    ]);
    expect(new Set(stored as unknown as string[])).toEqual(new Set(['saved', 'queued']));
    expect(settled).toMatchObject({ inFlight: 0, held: 0, ledger: { captured: 6, durable: 6 } });
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    expect(known).toMatchObject({ known: true, tokenCount: TOKENS.length });
    await hub.until(() => hub.of('durable').length === 6, 'six durable events');
    expect(hub.of('durable').map((event) => event.tokenCount)).toEqual([16, 32, 48, 64, 80, 83]);
    await hub.stop();
    expect(listTree(hub.cacheDir).filter((name) => name.includes('.tmp'))).toEqual([]);
  });

  it('[K119] a restore right behind the store of the same prompt sees all of it', async () => {
    const hub = startHub();
    const [, restored] = await hub.engine(hub.session(), [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'restore', tokens: TOKENS },
    ]);
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });

  it('another session and another life of the store find it; sessions are served side by side', async () => {
    const hub = startHub();
    await hub.engine(hub.session(), [{ step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 }, { step: 'settle' }]);
    const other = tokensOf(40, 9);
    const both = await Promise.all([
      hub.engine(hub.session(), [{ step: 'restore', tokens: TOKENS }, { step: 'store', tokens: other, requestId: 'b', requestNo: 1 }, { step: 'settle' }]),
      hub.engine(hub.session(), [{ step: 'restore', tokens: TOKENS, maxTokens: 50 }]),
    ]);
    expect(both.map(([first]) => first)).toMatchObject([
      { tokenCount: TOKENS.length, right: true },
      { tokenCount: 48, right: true },
    ]);
    await hub.stop();
    const again = startHub(hub.cacheDir);
    const [first, second] = await again.engine(again.session(), [
      { step: 'restore', tokens: TOKENS },
      { step: 'restore', tokens: other },
    ]);
    expect([first, second]).toMatchObject([
      { tokenCount: TOKENS.length, right: true },
      { tokenCount: 40, right: true },
    ]);
    expect(again.of('note')).toEqual([]);
    await again.stop();
  });

  it('parts larger than half the region, and larger than all of it, come through while the engine blocks', async () => {
    const hub = startHub();
    const { createRestoreMemory } = await import('../../dist/shared/blocks/restore-channel.js');
    const memory = hub.session({ restore: createRestoreMemory(300_000, 2 << 20) });
    const [, , restored] = await hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1, width: 2048 },
      { step: 'settle' },
      { step: 'restore', tokens: TOKENS, width: 2048 },
    ]);
    expect(restored).toMatchObject({ type: 'done', tokenCount: TOKENS.length, right: true });
    await hub.stop();
  });

  it('a request that is cleaned up while its blocks are on their way leaves nothing behind', async () => {
    const hub = startHub();
    const memory = hub.session();
    const [, , settled] = await hub.engine(memory, [
      { step: 'store', tokens: TOKENS, requestId: 'a', requestNo: 1 },
      { step: 'cleanup', requestId: 'a' },
      { step: 'settle' },
    ]);
    expect(settled).toMatchObject({ inFlight: 0, held: 0 });
    await hub.stop();
    const staged = listTree(join(hub.cacheDir, '_boundary_snapshots')).filter((name) => name.endsWith('.safetensors'));
    expect(staged).toEqual([]);
  });
});
