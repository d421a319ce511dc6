/**
 * Files are not trusted: links are never followed, and every byte is verified.
 * Must not happen: a link's target written, read or removed; a changed, cut or zeroed file taken for state.
 */
import { existsSync, lstatSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { Files } from '../../dist/shared/files.js';
import { keyToHex, requestKey } from '../../dist/shared/session/request-key.js';
import { attachSession } from '../../dist/shared/session/session.js';
import { ensureStagingRoot } from '../../dist/shared/staging.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { tempDir } from '../helpers/temp.ts';
import { type StoreFixture, startStore } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, toLayers } from './layers.mjs';

watchLeaks();

const folderOf = (f: StoreFixture, id = 'r') => join(f.memory.stagingDir, keyToHex(requestKey(id)!));
const fileOf = (f: StoreFixture, count = 1024) => join(folderOf(f), `${count}.safetensors`);

/** A store with (r, 1024) on disk. */
async function written(): Promise<StoreFixture> {
  const f = await startStore();
  f.store.save('r', 1024, toLayers(block(5, 100)));
  await f.settled();
  return f;
}

describe('symbolic links are refused', () => {
  it('[A9] a linked staging root is refused at construction and not filled', () => {
    const elsewhere = tempDir('elsewhere');
    const cacheDir = tempDir('boundary');
    symlinkSync(elsewhere, join(cacheDir, '_boundary_snapshots'));
    expect(() => ensureStagingRoot(join(cacheDir, '_boundary_snapshots'), new Files())).toThrow(/ELOOP/);
    expect(lstatSync(elsewhere).isDirectory()).toBe(true);
  });

  it('[A9] a linked session folder is refused at construction', async () => {
    const f = await written();
    const elsewhere = tempDir('elsewhere');
    renameSync(f.memory.stagingDir, `${f.memory.stagingDir}-old`);
    symlinkSync(elsewhere, f.memory.stagingDir);
    expect(() => new BoundarySnapshotStore(attachSession(f.memory, f.session.self))).toThrow(/ELOOP/);
    f.store.save('r', 2048, toLayers(block(1)));
    expect(await f.event('failed', 2048)).toMatchObject({ errno: 'ELOOP' });
    expect(new Files().list(elsewhere)).toEqual([]);
    await f.close();
  });

  it('[A9] a linked request folder is not written, read, taken from or emptied', async () => {
    const f = await written();
    const elsewhere = tempDir('elsewhere');
    writeFileSync(join(elsewhere, '1024.safetensors'), readFileSync(fileOf(f)));
    rmSync(folderOf(f), { recursive: true });
    symlinkSync(elsewhere, folderOf(f));
    expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'io' });
    expect(f.store.takeStagedFile('r', 1024)).toMatchObject({ ok: false, reason: 'io' });
    f.store.save('r', 2048, toLayers(block(1)));
    expect(await f.event('failed', 2048)).toMatchObject({ errno: 'ELOOP' });
    f.store.cleanupAll();
    expect(new Files().list(elsewhere)).toEqual(['1024.safetensors']);
    expect(existsSync(folderOf(f))).toBe(false);
    await f.close();
  });

  it('[A9] a link in the final file’s place is not read or taken, is replaced by the next save, and is removed as a link', async () => {
    const f = await written();
    const target = join(tempDir('elsewhere'), 'precious');
    writeFileSync(target, readFileSync(fileOf(f)));
    rmSync(fileOf(f));
    symlinkSync(target, fileOf(f));
    expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'io' });
    expect(f.store.takeStagedFile('r', 1024)).toMatchObject({ ok: false });
    expect(lstatSync(fileOf(f)).isSymbolicLink()).toBe(true);
    const before = readFileSync(target);
    f.store.cleanupRequest('r');
    expect(existsSync(folderOf(f))).toBe(false);
    expect(readFileSync(target)).toEqual(before);
    await f.close();
  });

  it('[A9] a link under the temporary name fails that boundary and its target keeps its bytes', async () => {
    const f = await startStore();
    const target = join(tempDir('elsewhere'), 'precious');
    writeFileSync(target, 'precious');
    // The name holds item and generation; the first item is 0, its generation 1.
    mkdirSync(folderOf(f), { mode: 0o700 });
    symlinkSync(target, join(folderOf(f), '.1024-0-1.tmp'));
    f.store.save('r', 1024, toLayers(block(1)));
    expect(await f.event('failed', 1024)).toMatchObject({ errno: 'EEXIST' });
    expect(readFileSync(target, 'utf8')).toBe('precious');
    await f.settled();
    expect(f.files()).toEqual([]);
    await f.close();
  });
});

describe('damaged files are misses', () => {
  it('[A10] an unknown format version, or metadata that is not of this format, is a miss before any tensor is read', async () => {
    const f = await written();
    const whole = readFileSync(fileOf(f));
    const swap = (from: string, to: string) => {
      expect(whole.includes(from)).toBe(true);
      writeFileSync(fileOf(f), Buffer.from(whole.toString('latin1').replace(from, to), 'latin1'));
      return f.store.load('r', 1024);
    };
    expect(swap('"tm.format":"1"', '"tm.format":"9"')).toMatchObject({ ok: false, reason: 'version' });
    expect(swap('"tm.format":"1"', '"tm.formaT":"1"')).toMatchObject({ ok: false, reason: 'version' });
    expect(swap('"tm.layers":"[', '"tm.layers":"x').ok).toBe(false);
    expect(swap('"tm.part":"state"', '"tm.part":"stale"').ok).toBe(false);
    await f.close();
  });

  it('[A11] one changed payload byte is a miss with reason checksum, and so is any changed header byte a miss', async () => {
    const f = await written();
    const whole = readFileSync(fileOf(f));
    for (let at = 0; at < whole.length; at++) {
      const changed = Buffer.from(whole);
      changed[at]! ^= 0x10;
      writeFileSync(fileOf(f), changed);
      const loaded = f.store.load('r', 1024);
      expect(loaded.ok, `byte ${at}`).toBe(false);
      if (at >= whole.length - 100) expect(loaded).toMatchObject({ reason: 'checksum' });
    }
    await f.close();
  });

  it('[A12] a file cut at any byte, empty, all zeros, or zero-filled behind its header is a miss', async () => {
    const f = await written();
    const whole = readFileSync(fileOf(f));
    for (let length = whole.length - 1; length >= 0; length -= 7) {
      truncateSync(fileOf(f), length);
      expect(f.store.load('r', 1024).ok, `${length} bytes`).toBe(false);
    }
    writeFileSync(fileOf(f), '');
    expect(f.store.load('r', 1024).ok).toBe(false);
    writeFileSync(fileOf(f), Buffer.alloc(whole.length));
    expect(f.store.load('r', 1024).ok).toBe(false);
    const hollow = Buffer.from(whole);
    hollow.fill(0, whole.length - 100);
    writeFileSync(fileOf(f), hollow);
    expect(f.store.load('r', 1024)).toMatchObject({ ok: false, reason: 'checksum' });
    writeFileSync(fileOf(f), Buffer.concat([whole, Buffer.from([0])]));
    expect(f.store.load('r', 1024).ok).toBe(false);
    writeFileSync(fileOf(f), whole);
    expect(f.store.load('r', 1024).ok).toBe(true);
    await f.close();
  });
});
