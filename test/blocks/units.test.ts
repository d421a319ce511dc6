// The unit queue between engine and store worker. Must not happen: an engine that waits for the disk, a unit that ends
// uncounted, another model's files touched.

import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { describe, expect, it } from 'vitest';
import { publishBlock, unitsInFlight } from '../../src/engine-thread/boundary/publish.ts';
import { ChainHasher } from '../../src/shared/blocks/identity.ts';
import { buildImage } from '../../src/shared/blocks/image.ts';
import { BlockPaths } from '../../src/shared/blocks/paths.ts';
import { sumOfStates } from '../../src/shared/session/index.ts';
import { chainSpecs, EXTRA_KEYS, stateLayers, tensor } from './fixtures.ts';
import { BLOCK, Harness, tokensOf } from './harness.ts';

describe('the unit queue', () => {
  it('[G75][G76] handing over never waits: a full queue refuses at once, and nothing is written on the engine’s path', () => {
    const operations: string[] = [];
    const harness = new Harness({ unitCapacity: 2, hooks: { before: (operation) => void operations.push(operation) } });
    const chain = chainSpecs(tokensOf(4 * BLOCK), BLOCK);
    const outcomes = chain.map(({ kv }) => publishBlock(harness.session, harness.unitOf({ ...kv, layers: kv.layers.slice(1) }, 'r', false)));
    expect(outcomes).toEqual(['queued', 'queued', 'backpressure', 'backpressure']);
    expect(operations).toEqual([]);
    expect(unitsInFlight(harness.session)).toBe(2);
    harness.drain();
    expect(unitsInFlight(harness.session)).toBe(0);
    const figures = harness.session.ledger.read();
    expect(figures).toMatchObject({ captured: 4, durable: 2, dropped: { backpressure: 2 } });
    expect(sumOfStates(figures)).toBe(4);
  });

  it('restores are served before the next unit', () => {
    const order: string[] = [];
    const harness = new Harness({
      hooks: {
        before(operation, path) {
          if (operation === 'create' && path.includes('/blocks/')) order.push('unit');
          if (operation === 'pread' && path.includes('/blocks/')) order.push('restore');
        },
      },
    });
    harness.submitChain(tokensOf(BLOCK, 1), 'stored');
    harness.drain();
    order.length = 0;
    const ticket = harness.begin(tokensOf(BLOCK, 1));
    for (let seed = 2; seed < 6; seed += 1) harness.submitChain(tokensOf(BLOCK, seed), `r${seed}`);
    harness.drain();
    expect(harness.readAll(ticket).end).toMatchObject({ type: 'done', tokenCount: 16 });
    // kv and state (prefix and rest each); the loop takes one part, then one unit.
    const last = order.lastIndexOf('restore');
    expect(order.slice(0, last).filter((what) => what === 'unit').length).toBeLessThanOrEqual(1);
  });

  it('[G82][L125] stopped at once, what is queued ends as failed, by name, with its bytes given back and no file left', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(4 * BLOCK), 'r');
    harness.drain(
      () => undefined,
      () => undefined,
      'now',
    );
    const figures = harness.session.ledger.read();
    expect(figures.failed + figures.durable).toBe(4);
    expect(figures.failed).toBeGreaterThan(0);
    expect(new Set(harness.of('failed').map((event) => event.errno))).toEqual(new Set(['ESHUTDOWN']));
    expect(harness.session.pending.held).toBe(0);
    expect(harness.tree().every((name) => name.startsWith('blocks/'))).toBe(true);
  });

  it('[H85] R01: blocks of another model in the same folder are neither used nor removed, and count', () => {
    const harness = new Harness();
    harness.submitChain(tokensOf(2 * BLOCK), 'mine');
    harness.drain();
    const paths = new BlockPaths(harness.dir);
    const other = new ChainHasher({ fingerprint: 'other', extraKeys: EXTRA_KEYS });
    const tokens = tokensOf(BLOCK);
    const blockHash = other.block('', tokens);
    const path = paths.block(blockHash, 'state');
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(
      path,
      buildImage({ part: 'state', blockHash, parentHash: '', start: 0, end: BLOCK, blockSize: BLOCK, tokens, fingerprint: 'other', layers: stateLayers(1) }),
    );
    let bytes = 0;
    harness.drain((store) => {
      bytes = store.space.blockBytes;
    });
    expect(bytes).toBe(5 * 4096);
    expect(harness.lookUp(tokensOf(2 * BLOCK)).end).toMatchObject({ type: 'done', tokenCount: 32 });
    expect(harness.lookUp(tokens, { fingerprint: 'other', needs: { kv: false, state: true } }).end).toMatchObject({ type: 'done', tokenCount: 16 });
  });

  it('pinned blocks are skipped by eviction', () => {
    const harness = new Harness({ otherBytes: () => 0 });
    const chains = [1, 2].map((seed) => harness.submitChain(tokensOf(BLOCK, seed), `r${seed}`)[0]!.kv.blockHash);
    harness.drain();
    const limited = new Harness({ dir: harness.dir, otherBytes: () => 0, maxBytes: 2 * 8192 });
    limited.submitChain(tokensOf(BLOCK, 3), 'third');
    limited.drain((store) => store.withIndex((index) => index.pin(chains[0]!, true)));
    expect(limited.of('evicted').map((event) => event.block)).toEqual([chains[1]]);
  });

  it('a model with state only: each boundary stands for itself', () => {
    const harness = new Harness();
    const chain = chainSpecs(tokensOf(3 * BLOCK), BLOCK);
    for (const { kv, state } of chain) {
      harness.stage('r', kv.end, { ...state, layers: [state.layers[0]!] });
      publishBlock(harness.session, harness.unitOf(kv, 'r', true, [{ className: 'ArraysCache', stored: 'none', meta: [], elements: [] }]));
    }
    harness.drain();
    expect(harness.of('durable').map((event) => event.tokenCount)).toEqual([16, 32, 48]);
    const { end, parts } = harness.lookUp(tokensOf(3 * BLOCK), { needs: { kv: false, state: true }, maxTokens: 40 });
    expect(end).toMatchObject({ type: 'done', tokenCount: 32 });
    expect(parts.map((part) => `${part.part} ${part.end}`)).toEqual(['state 32']);
    expect(harness.tree()).toHaveLength(3);
  });

  it('D13: the engine’s buffers may change as soon as the unit is queued', () => {
    const harness = new Harness();
    const bytes = new Uint8Array(16 * 4).fill(7);
    const spec = chainSpecs(tokensOf(BLOCK), BLOCK)[0]!.kv;
    const layers = [{ className: 'KVCache', stored: 'slice' as const, range: [0, BLOCK] as const, meta: [], elements: [tensor('F32', [1, 1, 16, 1], bytes)] }];
    publishBlock(harness.session, harness.unitOf(spec, 'r', false, layers));
    bytes.fill(9);
    harness.drain();
    const { parts } = harness.lookUp(tokensOf(BLOCK), { needs: { kv: true, state: false } });
    expect(JSON.stringify(parts[0]!.layers)).toContain('07'.repeat(64));
  });

  it('evicted boundaries leave the durable count', () => {
    const harness = new Harness({ otherBytes: () => 0, maxBytes: 4 * 8192 });
    for (let seed = 1; seed <= 6; seed += 1) {
      harness.submitChain(tokensOf(BLOCK, seed), `r${seed}`);
    }
    harness.drain();
    const figures = harness.session.ledger.read();
    expect(figures).toMatchObject({ captured: 6, durable: 4, evicted: 2 });
  });
});
