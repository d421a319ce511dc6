/**
 * A stand-in for the engine thread: runs a list of steps one after another without turning its event loop, and posts what
 * came of them. `workerData`: { shared, memory, cacheDir, steps }.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { IndexReader } from '../../dist/engine-thread/boundary/lookup.js';
import { publishBlock, unitsInFlight } from '../../dist/engine-thread/boundary/publish.js';
import { RestoreClient } from '../../dist/engine-thread/boundary/restore.js';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { ChainHasher } from '../../dist/shared/blocks/identity.js';
import { attachSession } from '../../dist/shared/session/index.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';

const { shared, memory, cacheDir, steps } = workerData;
const self = new ThreadTable(shared.threads).enter('engine', 'engine');
const session = attachSession(memory, self);
const store = new BoundarySnapshotStore(session);
const client = new RestoreClient(memory.restore, session.storeBell);
const reader = new IndexReader(
  cacheDir,
  () => client.indexUsable,
  () => unitsInFlight(session) === 0,
);
const identity = { fingerprint: 'model', extraKeys: ['x'] };
const BLOCK = 16;

const bytes = (length, seed) => Uint8Array.from({ length }, (_, i) => (i * 31 + seed * 17) & 255);
const tensor = (rows, width, seed) => {
  const content = bytes(rows * width * 4, seed);
  return {
    dtype: 'F32',
    shape: [1, 1, rows, width],
    byteLength: content.length,
    copyTo: (target, from) => target.set(content.subarray(from, from + target.length)),
  };
};
const placeholder = (className) => ({ className, stored: 'none', meta: [], elements: [] });
const kvLayers = (start, end, width) => [
  placeholder('ArraysCache'),
  { className: 'KVCache', stored: 'slice', range: [start, end], meta: [end], elements: [tensor(end - start, width, end), tensor(end - start, width, end + 1)] },
];
const stateLayers = (end, width) => [{ className: 'ArraysCache', stored: 'whole', meta: [end], elements: [tensor(3, width, end + 2)] }, placeholder('KVCache')];
const same = (element, wanted) => {
  const got = new Uint8Array(element.byteLength);
  element.copyTo(got, 0);
  const expected = new Uint8Array(wanted.byteLength);
  wanted.copyTo(expected, 0);
  return Buffer.compare(got, expected) === 0;
};

function storeChain({ tokens, requestId, requestNo, width = 64 }) {
  const hasher = new ChainHasher(identity);
  const results = [];
  let parent = '';
  for (let start = 0; start < tokens.length; start += BLOCK) {
    const end = Math.min(start + BLOCK, tokens.length);
    const own = tokens.slice(start, end);
    const hash = hasher.block(parent, own);
    const saved = store.save(requestId, end, stateLayers(end, width), {
      blockSize: BLOCK,
      block: { hash, parent, tokens: own, fingerprint: 'model' },
      requestNo,
    });
    results.push(saved.ok ? 'saved' : saved.reason);
    results.push(
      publishBlock(session, {
        requestNo,
        requestId,
        tokenCount: end,
        hash,
        parent,
        tokens: own,
        blockSize: BLOCK,
        fingerprint: 'model',
        kv: kvLayers(start, end, width),
        hasState: saved.ok,
      }),
    );
    parent = hash;
  }
  return results;
}

/** Blocks in `next` all the time: no event loop turn from begin to end. */
function restore({ tokens, maxTokens = tokens.length, width = 64, deadlineMs = 10_000 }) {
  const ticket = client.begin({ ...identity, tokens, maxTokens, blockSize: BLOCK, needs: { kv: true, state: true }, deadlineMs });
  const parts = [];
  let right = true;
  for (;;) {
    const event = ticket.next(1000);
    if (event.type === 'waiting') continue;
    if (event.type !== 'part') return { ...event, parts, right };
    const { part, start, end, layers } = event;
    const wanted = part === 'kv' ? kvLayers(start, end, width)[1] : stateLayers(end, width)[0];
    right &&= layers[part === 'kv' ? 1 : 0].elements.every((element, i) => same(element, wanted.elements[i]));
    parts.push(`${part} ${end}`);
    event.release();
  }
}

/** Two units of keys and values, then saves until one has to wait for the cap: the engine thread sits in `save`. */
function unitsThenSave({ tokens, requestId, requestNo, bytes, saves }) {
  const hasher = new ChainHasher(identity);
  const results = [];
  let parent = '';
  for (let start = 0; start < 2 * BLOCK; start += BLOCK) {
    const own = tokens.slice(start, start + BLOCK);
    const hash = hasher.block(parent, own);
    const kv = [kvLayers(start, start + BLOCK, 64)[1]];
    const unit = { requestNo, requestId, tokenCount: start + BLOCK, hash, parent, tokens: own, blockSize: BLOCK, fingerprint: 'model', kv, hasState: false };
    results.push(publishBlock(session, unit));
    parent = hash;
  }
  for (let i = 1; i <= saves; i++)
    results.push(store.save(requestId, 1000 * i, [{ className: 'ArraysCache', stored: 'whole', meta: [], elements: [tensor(1, bytes / 4, i)] }]));
  return results;
}

const done = {
  store: storeChain,
  unitsThenSave,
  restore,
  lookUp: ({ tokens }) => reader.longestChain({ ...identity, tokens, maxTokens: tokens.length, blockSize: BLOCK, needs: { kv: true, state: true } }),
  cleanup: ({ requestId }) => store.cleanupRequest(requestId),
  /** Sleeps without turning the loop until nothing of this session is in flight. */
  settle: ({ ms = 10_000 }) => {
    const words = new Int32Array(new SharedArrayBuffer(4));
    const until = performance.now() + ms;
    while (session.itemsInFlight > 0 && performance.now() < until) Atomics.wait(words, 0, 0, 5);
    return { inFlight: session.itemsInFlight, held: session.pending.held, ledger: session.ledger.read() };
  },
};
for (const { step, ...options } of steps) parentPort.postMessage({ step, result: done[step](options) });
reader.close();
self.leave();
parentPort.postMessage({ step: 'end' });
