/**
 * What is saved is what is loaded: from memory while it waits, from the staged file afterwards, under its own name only.
 * Must not happen: a boundary answered by another one's state, or a refused save that leaves anything behind.
 */
import { existsSync, mkdirSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { keyToHex, requestKey } from '../../dist/shared/session/request-key.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { StoreFixture, startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fillOf, fromLayers, tensor, toLayers } from './layers.mjs';

watchLeaks();

const bytes = (...values: number[]) => Uint8Array.from(values);

/** Two layers cut by token, two with state; meta of several types. */
function hybrid(value: number) {
  const state = (n: number) => ({
    className: 'ArraysCache',
    stored: 'whole',
    meta: [1, 2, 3, 'ring', true],
    elements: [tensor('F32', [1, 2], bytes(0, 0, 128, 63, n, 0, 0, 64)), tensor('BF16', [1, 3], bytes(1, 2, 3, 4, 5, n))],
  });
  const cut = { className: 'KVCache', stored: 'none', meta: [], elements: [] };
  return [cut, state(value), { ...cut, className: 'QuantizedKVCache' }, state(value + 1)];
}

describe('boundary store: keys, paths, round trip', () => {
  it('[A1] a pending boundary loads with the layers, order, class names, meta, shapes and types as captured', async () => {
    const f = new StoreFixture();
    const { store } = f.open();
    expect(store.save('r', 1024, toLayers(hybrid(9))).ok).toBe(true);
    const loaded = store.load('r', 1024);
    expect(loaded.ok).toBe(true);
    expect(fromLayers(loaded.layers)).toEqual(hybrid(9));
    expect(fromLayers(loaded.layers)[1].meta).toEqual([1, 2, 3, 'ring', true]);
    await f.close();
  });

  it('[A2] layers cut by token come back as empty placeholders that keep their class name, from memory and from disk', async () => {
    const f = await startStore();
    f.store.save('r', 1024, toLayers(hybrid(1)));
    await f.event('written', 1024);
    const layers = fromLayers(f.store.load('r', 1024).layers);
    expect(layers[0]).toEqual({ className: 'KVCache', stored: 'none', meta: [], elements: [] });
    expect(layers[2].className).toBe('QuantizedKVCache');
    expect(layers[1].elements).toHaveLength(2);
    expect(layers).toEqual(hybrid(1));
    await f.close();
  });

  it('[A3] boundaries of one request load in any order, each its own state, pending and written', async () => {
    const f = await startStore();
    const counts = [1024, 2048, 3072, 4096];
    for (const count of counts) f.store.save('r', count, toLayers(block(count / 1024)));
    for (const count of [3072, 1024, 4096, 2048]) expect(fillOf(fromLayers(f.store.load('r', count).layers))).toBe(count / 1024);
    await f.settled();
    for (const count of [2048, 4096, 1024, 3072]) expect(fillOf(fromLayers(f.store.load('r', count).layers))).toBe(count / 1024);
    await f.close();
  });

  it('[A4] has and load know exactly what was saved; a miss changes no file', async () => {
    const f = await startStore();
    f.store.save('r', 2048, toLayers(block(1)));
    await f.settled();
    expect([f.store.has('r', 2048), f.store.has('r', 4096), f.store.has('other', 2048)]).toEqual([true, false, false]);
    const before = f.files();
    expect(f.store.load('r', 4096)).toMatchObject({ ok: false, reason: 'absent' });
    expect(f.store.load('other', 2048)).toMatchObject({ ok: false, reason: 'absent' });
    expect(f.files()).toEqual(before);
    await f.close();
  });

  it('[A5] a capture without layers saves nothing and leaves nothing', async () => {
    const f = await startStore();
    expect(f.store.save('r', 1024, [])).toMatchObject({ ok: false, reason: 'empty' });
    expect(f.store.has('r', 1024)).toBe(false);
    expect(f.session.pending.held).toBe(0);
    expect(f.session.registry.live).toBe(0);
    expect(f.files()).toEqual([]);
    expect(f.session.ledger.read()).toMatchObject({ captured: 1, dropped: { empty: 1 } });
    await f.settled();
    await f.close();
  });

  it('[A6] an extraction, or a copy, that throws is a counted drop with its message, and the next save works', async () => {
    const f = await startStore();
    const broken = () => {
      throw new Error('no such state');
    };
    expect(f.store.save('r', 1024, broken)).toEqual({ ok: false, reason: 'capture', detail: 'no such state' });
    const uncopiable = toLayers(block(1));
    uncopiable[0].elements[0].copyTo = () => {
      throw new Error('array is gone');
    };
    expect(f.store.save('r', 1024, uncopiable)).toEqual({ ok: false, reason: 'capture', detail: 'array is gone' });
    expect(f.session.ledger.read()).toMatchObject({ captured: 2, dropped: { capture: 2 } });
    expect(f.files()).toEqual([]);
    expect(f.store.save('r', 1024, toLayers(block(3))).ok).toBe(true);
    await f.settled();
    expect(fillOf(fromLayers(f.store.load('r', 1024).layers))).toBe(3);
    await f.close();
  });

  it('[A7] a request id with path characters names a folder of 64 hex digits under the own staging folder, and nothing outside', async () => {
    const f = await startStore();
    const id = '../../outside/request';
    f.store.save(id, 1024, toLayers(block(1)));
    await f.settled();
    const folder = keyToHex(requestKey(id)!);
    expect(folder).toMatch(/^[0-9a-f]{64}$/);
    expect(keyToHex(requestKey(id)!)).toBe(folder);
    expect(f.files()).toEqual([`${folder}/`, `${folder}/1024.safetensors`]);
    expect(readdirSync(f.cacheDir)).toEqual(['_boundary_snapshots']);
    expect(existsSync(join(f.cacheDir, '..', 'outside'))).toBe(false);
    await f.close();
  });

  it('[A8] a token count that is no positive integer is refused everywhere, and so is an id that is no string; no path is made', async () => {
    const f = await startStore();
    for (const count of [-1, 0, 1.5, true, '1024', null, undefined, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 31, {}] as never[]) {
      expect(f.store.save('r', count, toLayers(block(1)))).toMatchObject({ ok: false, reason: 'invalid' });
      expect(f.store.load('r', count).ok).toBe(false);
      expect(f.store.has('r', count)).toBe(false);
      expect(f.store.takeStagedFile('r', count).ok).toBe(false);
    }
    for (const id of ['', 7, null, undefined, {}] as never[]) {
      expect(f.store.save(id, 1024, toLayers(block(1)))).toMatchObject({ ok: false, reason: 'invalid' });
      expect(f.store.has(id, 1024)).toBe(false);
    }
    expect(f.files()).toEqual([]);
    expect(f.session.ledger.read().captured).toBe(0);
    await f.close();
  });

  it('[A13] two sessions of one folder, also with the same request id, leave each other alone', async () => {
    const f = await startStore();
    const other = f.open();
    for (const store of [f.store, other.store]) {
      store.save('same', 1024, toLayers(block(1)));
      store.save('all', 1024, toLayers(block(2)));
    }
    await f.settled();
    await f.settled(other.session);
    const before = f.files(other.session);
    expect(f.store.cleanupRequest('same')).toEqual({ complete: true, inFlight: 0 });
    expect(f.store.cleanupAll()).toEqual({ complete: true, inFlight: 0 });
    expect(f.files()).toEqual([]);
    expect(f.files(other.session)).toEqual(before);
    expect(other.store.load('same', 1024).ok).toBe(true);
    await f.close();
  });

  it('[A15] folders have mode 0700 and files 0600, whatever the mask', async () => {
    const mask = process.umask(0);
    try {
      const f = await startStore();
      f.store.save('r', 1024, toLayers(block(1)));
      await f.settled();
      const mode = (path: string) => statSync(path).mode & 0o777;
      const folder = join(f.memory.stagingDir, keyToHex(requestKey('r')!));
      expect([f.stagingRoot, f.memory.stagingDir, folder].map(mode)).toEqual([0o700, 0o700, 0o700]);
      expect(mode(join(folder, '1024.safetensors'))).toBe(0o600);
      const taken = f.store.takeStagedFile('r', 1024);
      expect(taken.ok && mode(taken.path)).toBe(0o600);
      await f.close();
    } finally {
      process.umask(mask);
    }
  });

  it('a session whose folder, or all of staging, was removed under it makes it again', async () => {
    const f = await startStore();
    const { rmSync } = await import('node:fs');
    rmSync(f.memory.stagingDir, { recursive: true });
    f.store.save('r', 1024, toLayers(block(1)));
    await f.event('written', 1024);
    expect(f.store.load('r', 1024).ok).toBe(true);
    rmSync(f.stagingRoot, { recursive: true });
    f.store.save('r', 2048, toLayers(block(2)));
    await f.event('written', 2048);
    rmSync(join(f.stagingRoot, '_promote'), { recursive: true });
    expect(f.store.takeStagedFile('r', 2048)).toMatchObject({ ok: true });
    mkdirSync(join(f.memory.stagingDir, 'stray'));
    f.store.cleanupAll();
    expect(f.files()).toEqual([]);
    await f.close();
  });
});
