// A disk that fails is told once, by one event with a code, and recovers by itself. Must not happen: an error that reaches
// the engine, bytes that stay held, a second event for the same outage.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, renameSync, rmdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import type { StoreEvent } from '../../src/shared/events.ts';
import type { FileOperation } from '../../src/shared/files.ts';
import { sumOfStates } from '../../src/shared/session/index.ts';
import { codeOf, Persistence } from '../../src/store-worker/persistence.ts';
import { chainSpecs, kvLayers } from './fixtures.ts';
import { BLOCK, Harness, tokensOf } from './harness.ts';

function failing(operation: FileOperation, errno: string, while_: () => boolean) {
  return {
    before(now: FileOperation, path: string) {
      if (now === operation && path.includes('/blocks') && while_()) throw Object.assign(new Error(`${errno}: made up`), { code: errno });
    },
  };
}

describe('a failing disk', () => {
  it.each([
    ['create', 'ENOSPC', 'CACHE_FULL'],
    ['pwrite', 'ENOSPC', 'CACHE_FULL'],
    ['pwrite', 'EIO', 'CACHE_IO'],
    ['fsync', 'EIO', 'CACHE_IO'],
    ['rename', 'EROFS', 'CACHE_READ_ONLY'],
    ['syncFolder', 'EIO', 'CACHE_IO'],
    ['mkdir', 'EACCES', 'CACHE_READ_ONLY'],
  ] as const)('[D55][G80] %s fails with %s: one event, no file, no bytes held; then it recovers', (operation, errno, code) => {
    let broken = true;
    const harness = new Harness({ hooks: failing(operation, errno, () => broken) });
    const tokens = tokensOf(2 * BLOCK);
    harness.submitChain(tokens, 'a');
    harness.drain();
    expect(harness.of('degraded')).toMatchObject([{ code, details: { errno } }]);
    expect(harness.of('failed').map((event) => event.errno)).toEqual([errno, errno]);
    expect(harness.of('durable')).toEqual([]);
    expect(harness.session.pending.held).toBe(0);
    expect(harness.tree()).toEqual([]);
    expect(harness.session.ledger.read()).toMatchObject({ captured: 2, failed: 2, written: 0 });
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'miss', reason: 'absent' });
    broken = false;
    harness.events.length = 0;
    harness.submitChain(tokens, 'b');
    harness.drain();
    expect(harness.of('durable')).toHaveLength(2);
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 32 });
  });

  it('L12: when the second rename fails, the first file is taken back', () => {
    let renames = 0;
    const harness = new Harness({
      hooks: {
        before(operation, path) {
          if (operation === 'rename' && path.endsWith('.tmp')) renames += 1;
          if (renames === 1 && operation === 'rename' && path.endsWith('.tmp')) throw Object.assign(new Error('EIO'), { code: 'EIO' });
        },
      },
    });
    harness.submitChain(tokensOf(BLOCK), 'a');
    harness.drain();
    expect(harness.tree()).toEqual([]);
    expect(harness.of('failed')).toHaveLength(1);
  });

  it('an outage inside one life: one event, units fail at once during the back-off, then one says recovered', () => {
    const events: StoreEvent[] = [];
    let time = 0;
    const persistence = new Persistence(
      (event) => events.push(event),
      () => time,
      { firstMs: 100, maxMs: 300 },
    );
    const enospc = Object.assign(new Error('full'), { code: 'ENOSPC' });
    expect(persistence.mayTry).toBe(true);
    for (const expectedPause of [100, 200, 300, 300]) {
      persistence.failed(enospc);
      time += expectedPause - 1;
      expect(persistence.mayTry).toBe(false);
      time += 1;
      expect(persistence.mayTry).toBe(true);
    }
    persistence.failed(Object.assign(new Error('io'), { code: 'EIO' }));
    persistence.succeeded();
    persistence.succeeded();
    expect(events.map((event) => [event.type, (event as { code: string }).code])).toEqual([
      ['degraded', 'CACHE_FULL'],
      ['recovered', 'CACHE_FULL'],
    ]);
  });

  it('errnos have codes', () => {
    expect(['EDQUOT', 'SQLITE_FULL', 'EROFS', 'SQLITE_READONLY_DBMOVED', 'ENOENT', 'EIO', 'EUNKNOWN'].map(codeOf)).toEqual([
      'CACHE_FULL',
      'CACHE_FULL',
      'CACHE_READ_ONLY',
      'CACHE_READ_ONLY',
      'CACHE_DIR_UNUSABLE',
      'CACHE_IO',
      'CACHE_IO',
    ]);
  });

  it('a cache folder that vanishes while the store runs comes back with the next unit', () => {
    const harness = new Harness();
    const [first, second] = chainSpecs(tokensOf(2 * BLOCK), BLOCK);
    const away = `${harness.dir}-away`;
    for (const block of [first!, first!, second!]) harness.submitKvOnly(block.kv);
    harness.drain(() => renameSync(harness.dir, away));
    rmSync(away, { recursive: true });
    expect(harness.of('degraded')).toMatchObject([{ code: 'CACHE_DIR_UNUSABLE' }]);
    expect(harness.of('recovered')).toHaveLength(1);
    expect(harness.tree().filter((name) => name.startsWith('blocks/'))).toHaveLength(2);
  });
});

describe('an index that is damaged while in use', () => {
  it('is set aside and rebuilt where it is met; the work at hand goes on', () => {
    const harness = new Harness();
    for (let seed = 1; seed <= 12; seed += 1) harness.submitChain(tokensOf(3 * BLOCK, seed), `r${seed}`);
    harness.drain();
    harness.events.length = 0;
    harness.submitChain(tokensOf(2 * BLOCK, 50), 'new');
    harness.drain((store) => {
      // SQLite has all of this small file in its cache, so the statement that meets the damage is made up.
      store.withIndex((index) => {
        const put = index.put;
        index.put = () => {
          index.put = put;
          throw Object.assign(new Error('database disk image is malformed'), { code: 'SQLITE_CORRUPT' });
        };
      });
      for (const suffix of ['', '-wal']) {
        const path = join(harness.dir, `index.sqlite${suffix}`);
        if (existsSync(path)) writeFileSync(path, Buffer.alloc(statSync(path).size, 0xa5));
      }
    });
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([16, 32]);
    expect(harness.of('degraded')).toEqual([]);
    expect(harness.of('note').map((event) => [event.code, event.details.when])).toEqual([['INDEX_REBUILT', 'damage']]);
    expect(harness.lookUp(tokensOf(3 * BLOCK, 7)).end).toMatchObject({ type: 'done', tokenCount: 48 });
    expect(harness.lookUp(tokensOf(2 * BLOCK, 50)).end).toMatchObject({ type: 'done', tokenCount: 32 });
  });
});

describe('an index that a restore finds damaged', () => {
  it('is rebuilt, and the restore is served all the same', () => {
    const harness = new Harness();
    const tokens = tokensOf(3 * BLOCK);
    harness.submitChain(tokens, 'a');
    harness.drain();
    const ticket = harness.begin(tokens);
    harness.drain((store) => {
      store.index.db.get = () => {
        throw Object.assign(new Error('database disk image is malformed'), { code: 'SQLITE_CORRUPT' });
      };
    });
    expect(harness.readAll(ticket).end).toMatchObject({ type: 'done', tokenCount: 48, reason: null });
  });
});

describe('what a crash leaves', () => {
  it('L02: temporary files are removed at start and never taken for blocks', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(BLOCK), 'a');
    harness.drain();
    const folder = join(harness.dir, 'blocks', readdirSync(join(harness.dir, 'blocks'))[0]!);
    writeFileSync(join(folder, '.a.tmp'), '');
    writeFileSync(join(folder, '.b.tmp'), Buffer.alloc(5000));
    harness.drain();
    expect(readdirSync(folder).filter((name) => name.startsWith('.'))).toEqual([]);
    expect(harness.tree()).toHaveLength(2);
  });

  it('R12, R16: blocks that the index lacks are found, rows whose files are gone are dropped', () => {
    const harness = new Harness();
    const tokens = tokensOf(3 * BLOCK);
    const chain = harness.submitChain(tokens, 'a');
    harness.drain((store) => store.close);
    harness.drain((store) => store.withIndex((index) => index.remove(chain[1]!.kv.blockHash)));
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 48 });
  });
});

describe('read-only mode', () => {
  it('restores are served with and without a readable index; nothing is written', () => {
    const writer = new Harness();
    const tokens = tokensOf(2 * BLOCK + 5);
    writer.submitChain(tokens, 'a');
    writer.drain();
    const before = writer.tree();
    const reader = new Harness({ dir: writer.dir, mode: 'read-only' });
    expect(reader.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: tokens.length });
    for (const suffix of ['', '-wal', '-shm']) rmSync(join(writer.dir, `index.sqlite${suffix}`), { force: true });
    expect(reader.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: tokens.length });
    expect(writer.tree()).toEqual(before);
    expect(readdirSync(writer.dir).filter((name) => name.startsWith('index'))).toEqual([]);
  });

  it('a damaged file is a miss and stays; one event tells why the index is in memory', () => {
    const writer = new Harness();
    const tokens = tokensOf(2 * BLOCK);
    const chain = writer.submitChain(tokens, 'a');
    writer.drain();
    writer.damage(chain[1]!.kv.blockHash, 'kv');
    const before = writer.tree();
    rmSync(join(writer.dir, 'index.sqlite'));
    const reader = new Harness({ dir: writer.dir, mode: 'read-only' });
    expect(reader.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 16, reason: 'checksum' });
    expect(writer.tree()).toEqual(before);
    expect(reader.of('note').filter((event) => event.code === 'INDEX_REBUILT')).toHaveLength(1);
  });
});

const mounts: string[] = [];
afterAll(() => {
  for (const mount of mounts) {
    execFileSync('umount', ['-l', mount]);
    rmdirSync(mount);
  }
});

/** A tmpfs of 8 MB, or why it cannot be had here. */
function smallDisk(): string | { reason: string } {
  const mount = mkdtempSync(join(tmpdir(), 'tm-disk-'));
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m,mode=0700', 'tmpfs', mount], { stdio: 'pipe' });
  } catch (error) {
    rmdirSync(mount);
    return { reason: `no tmpfs: ${String((error as { stderr?: Buffer }).stderr ?? error).trim()}` };
  }
  mounts.push(mount);
  return mount;
}

describe('a disk of 8 MB', () => {
  it('E12: fills up with one event, keeps what fits, evicts old chains for new ones', (test) => {
    const disk = smallDisk();
    if (typeof disk !== 'string') return test.skip(disk.reason);
    const harness = new Harness({ dir: join(disk, 'cache'), freeBytes: null });
    const widths = 1024; // 128 KB per block
    const store = (seed: number) => {
      for (const { kv, state } of chainSpecs(tokensOf(10 * BLOCK, seed), BLOCK))
        harness.submit({ kv: { ...kv, layers: kvLayers(kv.end, kv.start, kv.end, widths) }, state }, `r${seed}`);
      harness.drain();
    };
    for (let seed = 1; seed <= 9; seed += 1) store(seed);
    const figures = harness.session.ledger.read();
    expect(sumOfStates(figures)).toBe(figures.captured);
    expect(harness.session.pending.held).toBe(0);
    expect(harness.lookUp(tokensOf(10 * BLOCK, 9)).end).toMatchObject({ type: 'done', tokenCount: 160 });
    expect(harness.of('evicted').length).toBeGreaterThan(0);
    expect(harness.tree().filter((name) => name.endsWith('.tmp'))).toEqual([]);
  });

  it('full of somebody else’s files: units fail, one event, and it recovers when there is room', (test) => {
    const disk = smallDisk();
    if (typeof disk !== 'string') return test.skip(disk.reason);
    const harness = new Harness({ dir: join(disk, 'cache'), freeBytes: null });
    harness.drain();
    const ballast = join(disk, 'ballast');
    try {
      writeFileSync(ballast, Buffer.alloc(9 << 20));
    } catch (error) {
      expect((error as NodeJS.ErrnoException).code).toBe('ENOSPC');
    }
    const [only] = chainSpecs(tokensOf(BLOCK), BLOCK);
    const kv = { ...only!.kv, layers: kvLayers(1, 0, BLOCK, 1024) };
    harness.submitKvOnly(kv);
    harness.submitKvOnly(kv);
    harness.drain();
    expect(harness.of('degraded')).toMatchObject([{ code: 'CACHE_FULL' }]);
    expect(harness.of('failed').length).toBe(2);
    rmSync(ballast);
    harness.submitKvOnly(kv);
    harness.drain();
    expect(harness.of('durable')).toHaveLength(1);
  });
});

describe('a full disk without an index', () => {
  it('is opened with an index in memory, and what is stored is restored', (test) => {
    const disk = smallDisk();
    if (typeof disk !== 'string') return test.skip(disk.reason);
    const dir = join(disk, 'cache');
    const tokens = tokensOf(20 * BLOCK);
    const harness = new Harness({ dir, freeBytes: null });
    const chain = harness.submitChain(tokens, 'a');
    harness.drain();
    for (const suffix of ['', '-wal', '-shm']) rmSync(join(dir, `index.sqlite${suffix}`), { force: true });
    try {
      writeFileSync(join(disk, 'ballast'), Buffer.alloc(9 << 20));
    } catch (error) {
      expect((error as NodeJS.ErrnoException).code).toBe('ENOSPC');
    }
    const ticket = harness.begin(tokens);
    harness.drain();
    expect(harness.readAll(ticket).end).toMatchObject({ type: 'done', tokenCount: 320 });
    expect(harness.of('note').find((event) => event.code === 'INDEX_REBUILT')?.details).toMatchObject({ inMemory: true, added: 40 });
    harness.damage(chain[10]!.kv.blockHash, 'kv');
    expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: 160, reason: 'checksum' });
  });
});

describe('a read-only disk', () => {
  it('what is stored is restored, in either mode; units fail with one event', (test) => {
    const disk = smallDisk();
    if (typeof disk !== 'string') return test.skip(disk.reason);
    const dir = join(disk, 'cache');
    const tokens = tokensOf(2 * BLOCK + 3);
    const writer = new Harness({ dir });
    writer.submitChain(tokens, 'a');
    writer.drain();
    execFileSync('mount', ['-o', 'remount,ro', disk]);
    const reader = new Harness({ dir, mode: 'read-only' });
    expect(reader.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: tokens.length });
    expect(reader.of('degraded')).toEqual([]);

    // The mount went read-only under a writer.
    const surprised = writer;
    surprised.events.length = 0;
    const [other] = chainSpecs(tokensOf(BLOCK, 5), BLOCK);
    surprised.submitKvOnly(other!.kv);
    surprised.submitKvOnly(other!.kv);
    surprised.drain();
    expect(surprised.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: tokens.length });
    expect(surprised.of('degraded')).toMatchObject([{ code: 'CACHE_READ_ONLY' }]);
    expect(surprised.of('failed')).toHaveLength(2);
    execFileSync('mount', ['-o', 'remount,rw', disk]);
    surprised.submitKvOnly(other!.kv);
    surprised.drain();
    expect(surprised.of('durable')).toHaveLength(1);
  });
});
