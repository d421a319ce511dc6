import { describe, expect, it } from 'vitest';
import { startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, fromLayers, toLayers, valueOf } from './layers.mjs';

describe('save, written, take', () => {
  it('goes through', async () => {
    const f = await startStore();
    expect(f.store.save('r', 1024, toLayers(block(7, 10_000)))).toEqual({ ok: true, how: 'queued' });
    await f.event('written', 1024);
    await f.settled();
    const loaded = f.store.load('r', 1024);
    expect(loaded.ok && valueOf(fromLayers(loaded.layers))).toBe(7);
    const taken = f.store.takeStagedFile('r', 1024);
    expect(taken).toMatchObject({ ok: true });
    expect(f.files()).toEqual([]);
    await f.stop();
  });
});
