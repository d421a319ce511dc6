// A state that goes on from those of the blocks before: they are restored together, or an earlier point is.
// Must not happen: `durable` before every state of the chain is stored; a restore that hands over a part of a pool.
import { describe, expect, it } from 'vitest';
import { compactPools } from '../../src/engine-thread/boundary/compaction.ts';
import { joinStates } from '../../src/engine-thread/boundary/join-states.ts';
import { publishBlock } from '../../src/engine-thread/boundary/publish.ts';
import type { LayerState } from '../../src/shared/layer-state.ts';
import { bytesOf, chainSpecs, plain, tensor } from './fixtures.ts';
import { BLOCK, Harness, tokensOf } from './harness.ts';

const RATIO = 4;
const WIDTH = 8;
const pool = bytesOf(1024 * WIDTH, 5);

/** The state after `tokens` tokens, whole. */
function wholeState(tokens: number): LayerState[] {
  const rows = Math.floor(tokens / RATIO);
  const pooled = tensor('U8', [1, rows, WIDTH], pool.subarray(0, rows * WIDTH));
  return [
    {
      className: 'CacheList',
      stored: 'whole',
      meta: [tokens],
      elements: [[tensor('U8', [1, 4], tokens)], [tensor('U8', [1, 3], tokens), null, pooled]],
      parts: [
        { className: 'RotatingKVCache', meta: [32] },
        { className: 'PoolingCache', meta: [], ratio: RATIO },
      ],
    },
    { className: 'KVCache', stored: 'none', meta: [], elements: [] },
  ];
}

function chainOf(length: number): ReturnType<typeof chainSpecs> {
  return chainSpecs(tokensOf(length), BLOCK).map(({ kv, state }) => ({
    kv,
    state: { ...state, layers: compactPools(wholeState(state.end), { tokenCount: state.end, blockSize: BLOCK }) },
  }));
}

/** Restores as the engine does: parts as they come, joined at the end. */
function restore(harness: Harness, tokens: Uint32Array) {
  const ticket = harness.begin(tokens);
  harness.drain();
  const states = new Map<number, { start: number; layers: readonly LayerState[] }>();
  const releases: (() => void)[] = [];
  for (;;) {
    const event = ticket.next(0);
    if (event.type === 'part') {
      // Released at the end only: the bytes are read when they are joined.
      releases.push(() => event.release());
      if (event.part === 'state') states.set(event.end, { start: event.start, layers: event.layers });
      continue;
    }
    if (event.type !== 'done') return { end: event, ends: [...states.keys()], state: null };
    const chain: (readonly LayerState[])[] = [];
    for (let at = event.tokenCount, state = states.get(at); state !== undefined; at = state.start, state = states.get(at)) chain.unshift(state.layers);
    const joined = joinStates(chain, event.tokenCount);
    const state = joined.ok ? plain(joined.layers) : joined.detail;
    for (const release of releases) release();
    return { end: event, ends: [...states.keys()], state };
  }
}

describe('states that go on from those of the blocks before', () => {
  it('[B27] are handed over with all that they go on from, and give the whole state back', () => {
    const harness = new Harness();
    const length = 3 * BLOCK + 7;
    for (const block of chainOf(length)) harness.submit(block);
    harness.drain();
    expect(harness.of('durable').map(({ tokenCount }) => tokenCount)).toEqual([16, 32, 48, 55]);
    const { end, ends, state } = restore(harness, tokensOf(length));
    expect(end).toMatchObject({ type: 'done', tokenCount: 55, reason: null });
    expect(ends).toEqual([55, 48, 32, 16]);
    expect(state).toEqual(plain(wholeState(55)));
  });

  it('[B27] with one of them damaged, the longest point before it is restored, and the reason told', () => {
    const harness = new Harness();
    const chain = chainOf(4 * BLOCK);
    for (const block of chain) harness.submit(block);
    harness.drain();
    harness.damage(chain[2]!.kv.blockHash, 'state');
    const { end, state } = restore(harness, tokensOf(4 * BLOCK));
    expect(end).toMatchObject({ type: 'done', tokenCount: 32, reason: 'checksum' });
    expect(state).toEqual(plain(wholeState(32)));
  });

  it('[B27] a boundary is durable when the states before it are stored as well, also when they come later', () => {
    const harness = new Harness();
    const [first, second, third] = chainOf(3 * BLOCK) as [ReturnType<typeof chainOf>[0], ReturnType<typeof chainOf>[0], ReturnType<typeof chainOf>[0]];
    harness.submit(first);
    // Its state was dropped; its rows were stored without.
    publishBlock(harness.session, harness.unitOf(second.kv, 'r', false));
    harness.submit(third);
    harness.drain();
    expect(harness.of('durable').map(({ tokenCount }) => tokenCount)).toEqual([16]);
    expect(restore(harness, tokensOf(3 * BLOCK)).end).toMatchObject({ type: 'done', tokenCount: 16 });
    expect(harness.session.ledger.read()).toMatchObject({ captured: 2, durable: 1, written: 1 });
    harness.events.length = 0;
    // A loop of its own knows nothing of who waited in the one before: both are submitted again.
    harness.submit(third, 'again');
    harness.submit(second, 'again');
    harness.drain();
    expect(harness.of('durable').map(({ tokenCount }) => tokenCount)).toEqual([32, 48]);
    expect(restore(harness, tokensOf(3 * BLOCK))).toMatchObject({ end: { tokenCount: 48 }, state: plain(wholeState(48)) });
  });
});
