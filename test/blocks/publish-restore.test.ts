// A block becomes durable and comes back bit for bit, also after the index is gone and from a new loop.
// Must not happen: `durable` before everything a restart needs is published; bytes or places that are not given back.
import { existsSync, lstatSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { IndexReader } from '../../src/engine-thread/boundary/lookup.ts';
import { publishBlock } from '../../src/engine-thread/boundary/publish.ts';
import { sumOfStates } from '../../src/shared/session/index.ts';
import { chainSpecs, EXTRA_KEYS, FINGERPRINT } from './fixtures.ts';
import { BLOCK, Harness, plain, tokensOf } from './harness.ts';

describe('publish and restore', () => {
  it('[D58][G74] a chain of blocks becomes durable in order and is restored with its state', () => {
    const harness = new Harness();
    const tokens = tokensOf(3 * BLOCK + 5);
    const chain = harness.submitChain(tokens);
    harness.drain();
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([16, 32, 48, 53]);
    expect(harness.of('failed')).toEqual([]);

    const { end, parts } = harness.lookUp(Uint32Array.of(...tokens, 1, 2, 3));
    expect(end).toEqual({ type: 'done', tokenCount: 53, reason: null, detail: '' });
    expect(parts.map(({ part, start, end }) => [part, start, end])).toEqual([
      ['kv', 0, 16],
      ['kv', 16, 32],
      ['kv', 32, 48],
      ['kv', 48, 53],
      ['state', 48, 53],
    ]);
    expect(parts.slice(0, 4).map((part) => part.layers)).toEqual(chain.map(({ kv }) => plain(kv.layers)));
    expect(parts[4]!.layers).toEqual(plain(chain[3]!.state.layers));
  });

  it('[C46][D57][F73] bytes and places are free, staging is empty, the ledger adds up', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(40));
    expect(harness.session.pending.held).toBeGreaterThan(0);
    harness.drain();
    expect(harness.session.pending.held).toBe(0);
    expect(harness.session.itemsInFlight).toBe(0);
    expect(harness.tree().filter((name) => !name.startsWith('blocks/'))).toEqual([]);
    expect(harness.tree()).toHaveLength(6);
    const figures = harness.session.ledger.read();
    expect(figures).toMatchObject({ captured: 3, durable: 3, pending: 0, written: 0 });
    expect(sumOfStates(figures)).toBe(figures.captured);
  });

  it('[K119] blocks of the same prompt that are still queued are waited for; the cap on tokens holds', () => {
    const harness = new Harness();
    const tokens = tokensOf(4 * BLOCK);
    harness.submitChain(tokens);
    const other = tokens.slice();
    other[2 * BLOCK + 3]! += 1;
    expect(harness.lookUp(other).end).toMatchObject({ type: 'done', tokenCount: 2 * BLOCK });
    expect(harness.lookUp(tokens, { maxTokens: 4 * BLOCK - 1 }).end).toMatchObject({ type: 'done', tokenCount: 3 * BLOCK });
    expect(harness.lookUp(tokens, { maxTokens: BLOCK - 1 }).end).toMatchObject({ type: 'miss', reason: 'absent' });
    expect(harness.lookUp(tokens, { extraKeys: [...EXTRA_KEYS, 'salt:x'] }).end).toMatchObject({ type: 'miss', reason: 'fingerprint' });
    expect(harness.lookUp(tokens, { fingerprint: 'other' }).end).toMatchObject({ type: 'miss', reason: 'fingerprint' });
  });

  it('[D58] a block whose parent is missing is stored, and durable when the parent comes', () => {
    const harness = new Harness();
    const chain = chainSpecs(tokensOf(3 * BLOCK), BLOCK);
    const submit = (i: number) => {
      harness.stage('r', chain[i]!.kv.end, chain[i]!.state);
      publishBlock(harness.session, harness.unitOf(chain[i]!.kv, 'r', true));
    };
    submit(2);
    submit(1);
    submit(0);
    harness.drain();
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([16, 32, 48]);
  });

  it('[A15] files are 0600 and folders 0700, the index included', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(2 * BLOCK));
    harness.drain(() => {
      for (const name of readdirSync(harness.dir, { recursive: true }) as string[]) {
        const stat = lstatSync(join(harness.dir, name));
        expect(stat.mode & 0o777, name).toBe(stat.isDirectory() ? 0o700 : 0o600);
      }
    });
    for (const name of readdirSync(harness.dir, { recursive: true }) as string[]) {
      const stat = lstatSync(join(harness.dir, name));
      expect(stat.mode & 0o777, name).toBe(stat.isDirectory() ? 0o700 : 0o600);
    }
  });

  it('a unit waits for its staged file without holding up the next', () => {
    const harness = new Harness();
    const [first, second] = chainSpecs(tokensOf(2 * BLOCK), BLOCK) as [ReturnType<typeof chainSpecs>[0], ReturnType<typeof chainSpecs>[0]];
    publishBlock(harness.session, harness.unitOf(first.kv, 'r', true)); // never saved: goes without its state
    harness.stage('r', second.kv.end, second.state);
    publishBlock(harness.session, harness.unitOf(second.kv, 'r', true));
    harness.drain();
    // Nobody can resume at the first block, but it is part of the second one's chain.
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([32]);
    expect(harness.lookUp(tokensOf(2 * BLOCK), { maxTokens: 31 }).end).toMatchObject({ type: 'miss' });
  });

  it('a model without fixed state needs no staged file', () => {
    const harness = new Harness();
    const chain = chainSpecs(tokensOf(2 * BLOCK), BLOCK);
    for (const { kv } of chain) publishBlock(harness.session, harness.unitOf({ ...kv, layers: kv.layers.slice(1) }, 'r', false));
    harness.drain();
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([16, 32]);
    expect(harness.session.ledger.read()).toMatchObject({ captured: 2, durable: 2 });
    expect(harness.lookUp(tokensOf(2 * BLOCK), { needs: { kv: true, state: false } }).end).toMatchObject({ type: 'done', tokenCount: 32 });
  });

  it('[G78] storing a block again writes nothing and says durable again', () => {
    const writes: string[] = [];
    const harness = new Harness({ hooks: { before: (operation, path) => void (operation === 'create' && writes.push(path)) } });
    harness.submitChain(tokensOf(2 * BLOCK), 'a');
    harness.drain();
    const before = writes.length;
    harness.submitChain(tokensOf(2 * BLOCK), 'b');
    harness.drain();
    expect(writes.length).toBe(before);
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([16, 32, 16, 32]);
    expect(harness.tree()).toHaveLength(4);
  });

  it('the index is rebuilt from file headers when it is gone or damaged', () => {
    const harness = new Harness();
    const tokens = tokensOf(2 * BLOCK + 7);
    harness.submitChain(tokens);
    harness.drain();
    for (const damage of [
      () => {
        for (const suffix of ['', '-wal', '-shm']) rmSync(join(harness.dir, `index.sqlite${suffix}`), { force: true });
      },
      () => {
        rmSync(join(harness.dir, 'index.sqlite'));
        writeGarbage(harness);
      },
    ]) {
      damage();
      harness.events.length = 0;
      expect(harness.lookUp(tokens).end).toMatchObject({ type: 'done', tokenCount: tokens.length });
      expect(harness.of('note').map((event) => event.code)).toEqual(['INDEX_REBUILT']);
    }
    expect(existsSync(join(harness.dir, 'index.sqlite.damaged'))).toBe(true);
  });

  it('engines read the index through their own connection', () => {
    const harness = new Harness();
    const tokens = tokensOf(2 * BLOCK + 7);
    harness.submitChain(tokens);
    const request = { tokens, maxTokens: tokens.length, fingerprint: FINGERPRINT, extraKeys: EXTRA_KEYS, blockSize: BLOCK, needs: { kv: true, state: true } };
    const reader = new IndexReader(harness.dir, () => harness.restore.indexUsable);
    expect(reader.longestChain(request)).toMatchObject({ known: false });
    harness.drain();
    expect(reader.longestChain(request)).toMatchObject({ known: true, tokenCount: tokens.length });
    expect(reader.longestChain({ ...request, maxTokens: 20 })).toMatchObject({ known: true, tokenCount: 16 });
    expect(reader.longestChain({ ...request, fingerprint: 'x' })).toMatchObject({ known: true, tokenCount: 0, reason: 'fingerprint' });
    reader.close();
  });
});

function writeGarbage(harness: Harness): void {
  const path = join(harness.dir, 'index.sqlite');
  const fd = harness.files.createExclusive(path);
  harness.files.writeAll(fd, new Uint8Array(8192).fill(0x41), 0, path);
  harness.files.close(fd);
}
