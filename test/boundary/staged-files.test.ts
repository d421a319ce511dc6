/**
 * Taking staged files: the state is written once, and becomes part of a block by a rename.
 * Must not happen: a file taken twice, a taken file removed by a cleanup, a wait without a limit.
 */
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { PagedBytes, verifyImage } from '../../dist/shared/blocks/image.js';
import { Files } from '../../dist/shared/files.js';
import { DEFAULT_LIMITS } from '../../dist/shared/session/limits.js';
import { requestKey } from '../../dist/shared/session/request-key.js';
import { stagedState, takeStaged } from '../../dist/shared/session/staged-files.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { tempDir } from '../helpers/temp.ts';
import { pathOf, startStore, until } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { Gate } from './gate.mjs';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, toLayers } from './layers.mjs';

watchLeaks();

describe('staged files', () => {
  it('[F70] taking waits for the write and gives a path outside the own folder; then the store knows it no more', async () => {
    expect(DEFAULT_LIMITS.takeWaitMs).toBe(30_000);
    const f = await startStore({ takeWaitMs: 10_000 });
    f.gate.hold('rename');
    f.store.save('r', 3072, toLayers(block(1, 5000)));
    await f.gate.arrived('rename');
    const taker = await f.actor('store-worker', 'taker');
    const taking = taker.call<{ ok: true; path: string }>('take', 'r', 3072);
    await f.waiting('taker', 'pendingCond');
    f.gate.release('rename');
    const taken = await taking;
    expect(taken.ok).toBe(true);
    expect(dirname(taken.path)).toBe(join(f.stagingRoot, '_promote'));
    expect(basename(taken.path)).not.toBe('3072.safetensors');
    expect(verifyImage(PagedBytes.of(readFileSync(taken.path)), { part: 'state', end: 3072 })).toMatchObject({ ok: true });
    expect(f.store.has('r', 3072)).toBe(false);
    expect(f.store.takeStagedFile('r', 3072)).toMatchObject({ ok: false, reason: 'absent' });
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[F71] a taken file stays, with its bytes, whatever is cleaned or saved later', async () => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    const taken = f.store.takeStagedFile('r', 1024) as { path: string };
    const bytes = readFileSync(taken.path);
    f.store.save('r', 1024, toLayers(block(2)));
    await f.settled();
    f.store.cleanupRequest('r');
    f.store.cleanupAll();
    await f.settled();
    expect(readFileSync(taken.path)).toEqual(bytes);
    // The later save of the same boundary is a file of its own.
    f.store.save('r', 1024, toLayers(block(3)));
    await f.settled();
    const second = f.store.takeStagedFile('r', 1024) as { path: string };
    expect(second.path).not.toBe(taken.path);
    await f.close();
  });

  it('[F72] a wait that runs out, a bad name, a missing file and a link are misses, and nothing has moved', async () => {
    const f = await startStore({ takeWaitMs: 20 });
    f.gate.hold('rename');
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived('rename');
    expect(f.store.takeStagedFile('r', 1024)).toMatchObject({ ok: false, reason: 'busy' });
    f.gate.release('rename');
    await f.settled();
    expect(f.store.takeStagedFile('r', -1 as never).ok).toBe(false);
    expect(f.store.takeStagedFile('', 1024).ok).toBe(false);
    const target = join(tempDir('elsewhere'), 'precious');
    writeFileSync(target, 'precious');
    rmSync(pathOf(f, 'r', 1024));
    symlinkSync(target, pathOf(f, 'r', 1024));
    expect(f.store.takeStagedFile('r', 1024).ok).toBe(false);
    expect(readFileSync(target, 'utf8')).toBe('precious');
    expect(new Files().list(join(f.stagingRoot, '_promote'))).toEqual([]);
    rmSync(pathOf(f, 'r', 1024));
    expect(f.store.takeStagedFile('r', 1024)).toMatchObject({ ok: false, reason: 'absent' });
    expect(f.store.has('r', 1024)).toBe(false);
    await f.settled();
    await f.close();
  });

  it('[F72] the drain loop does not wait: busy now, taken when the staged sequence has changed', async () => {
    const f = await startStore();
    const key = requestKey('r')!;
    expect(stagedState(f.session, key, 1024)).toBe('absent');
    f.gate.hold('rename');
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived('rename');
    const before = f.session.stagedSequence;
    expect(stagedState(f.session, key, 1024)).toBe('pending');
    expect(takeStaged(f.session, new Files(), key, 1024, 0)).toMatchObject({ ok: false, reason: 'busy' });
    f.gate.release('rename');
    await until(() => f.session.stagedSequence !== before, 'staged sequence');
    expect(stagedState(f.session, key, 1024)).toBe('written');
    expect(takeStaged(f.session, new Files(), key, 1024, 0)).toMatchObject({ ok: true });
    await f.close();
  });

  it('[F72] a boundary that failed, or was cleaned, is absent to whoever waits for it', async () => {
    const f = await startStore({ takeWaitMs: 60_000, cleanupRequestWaitMs: 5 });
    const taker = await f.actor('store-worker', 'taker');
    f.gate.hold('create');
    f.store.save('r', 1024, toLayers(block(1)));
    await f.gate.arrived('create');
    const first = taker.call('take', 'r', 1024);
    await f.waiting('taker', 'pendingCond');
    f.gate.fail('pwrite', 'ENOSPC', 1);
    f.gate.release('create');
    expect(await first).toMatchObject({ ok: false, reason: 'absent' });
    f.gate.hold('create');
    f.store.save('r', 2048, toLayers(block(1)));
    await f.gate.arrived('create');
    const second = taker.call('take', 'r', 2048);
    await f.waiting('taker', 'pendingCond');
    f.store.cleanupRequest('r');
    expect(await second).toMatchObject({ ok: false, reason: 'absent' });
    f.gate.release('create');
    await f.settled();
    await f.close();
  });

  it('[F71] cleanup leaves a file alone that is being detached', async () => {
    const f = await startStore();
    const own = new Gate();
    const taker = await f.actor('store-worker', 'taker', { gate: own });
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    own.hold('rename');
    const taking = taker.call<{ ok: true; path: string }>('take', 'r', 1024);
    await own.arrived('rename');
    expect(f.store.has('r', 1024)).toBe(false);
    f.store.cleanupRequest('r');
    expect(existsSync(pathOf(f, 'r', 1024))).toBe(true);
    // The same boundary saved at this moment is on its way into the block store already.
    expect(f.store.save('r', 1024, toLayers(block(2)))).toEqual({ ok: true, how: 'coalesced' });
    own.release('rename');
    const taken = await taking;
    expect(existsSync(taken.path)).toBe(true);
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[F71] a file that could not be renamed away goes with the request that was cleaned meanwhile', async () => {
    const f = await startStore();
    const own = new Gate();
    const taker = await f.actor('store-worker', 'taker', { gate: own });
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    own.hold('rename');
    own.fail('rename', 'EIO', 1);
    const taking = taker.call('take', 'r', 1024);
    await own.arrived('rename');
    f.store.cleanupRequest('r');
    own.release('rename');
    expect(await taking).toMatchObject({ ok: false, reason: 'io' });
    await until(() => f.session.registry.live === 0, 'the writer removes it');
    await f.settled();
    // The folder goes behind the file's record.
    await until(() => f.files().length === 0, 'the folder to go');
    await f.close();
  });

  it('a taker that died in the middle does not leave its record behind', async () => {
    const f = await startStore();
    const own = new Gate();
    const taker = await f.actor('store-worker', 'taker', { gate: own });
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    own.hold('rename');
    void taker.call('take', 'r', 1024).catch(() => undefined);
    await own.arrived('rename');
    await taker.worker.terminate();
    await until(() => f.session.self.table.list().some(({ name, state }) => name === 'taker' && state !== 'alive'), 'death noticed');
    f.store.cleanupRequest('r');
    await f.settled();
    expect(f.session.registry.live).toBe(0);
    expect(f.files()).toEqual([]);
    await f.close();
  });

  it('[F73] the state was written to the device once, and goes with its session when it never becomes part of a block', async () => {
    const f = await startStore();
    f.gate.takeTrace();
    f.store.save('r', 1024, toLayers(block(1)));
    await f.settled();
    const inode = statSync(pathOf(f, 'r', 1024)).ino;
    const taken = f.store.takeStagedFile('r', 1024) as { path: string };
    expect(statSync(taken.path).ino).toBe(inode);
    // Payload and header.
    expect(f.gate.takeTrace().filter((operation: string) => operation === 'pwrite')).toHaveLength(2);
    await f.close(); // gives the session's lock up, as a process does that ends
    mkdirSync(join(f.stagingRoot, 'unrelated'), { recursive: true });
    await f.startWriter(2);
    await until(() => !existsSync(taken.path), 'next start clears it');
    await f.close();
  });
});
