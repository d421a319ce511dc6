/**
 * An engine that leases, over a real session with real loops: two units whose rows lie in MLX's buffers, then saves until one has to wait.
 * workerData: { shared, memory, cacheDir, args: { tokens, saves, bytes, width, die? } }. Posts strings on its way and { result } at its end.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { LeaseBook } from '../../dist/engine-thread/boundary/lease-book.js';
import { placeBlock } from '../../dist/engine-thread/boundary/publish.js';
import { RestoreClient } from '../../dist/engine-thread/boundary/restore.js';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { leaseAccess } from '../../dist/engine-thread/mlx/lease-access.js';
import { nativeLeases } from '../../dist/engine-thread/mlx/leases.js';
import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { tensorReader } from '../../dist/engine-thread/mlx/read-many.js';
import { CopyPlan } from '../../dist/shared/blocks/copy-plan.js';
import { ChainHasher } from '../../dist/shared/blocks/identity.js';
import { attachSession } from '../../dist/shared/session/index.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';

const { shared, memory, args } = workerData;
const self = new ThreadTable(shared.threads).enter('engine', 'engine');
const session = attachSession(memory, self);
session.leases = leaseAccess(shared, self);
const store = new BoundarySnapshotStore(session);
const book = new LeaseBook(nativeLeases);
const s = mx.openEngineStream('cpu');
const identity = { fingerprint: 'model', extraKeys: ['x'] };
const BLOCK = 16;
const { tokens, width, saves, bytes } = args;

/** Rows of a layer: each element its own index plus `seed`, computed by MLX. */
const rowsOf = (seed) => mx.scope(() => mx.retain(mx.reshape(mx.add(mx.arange(0, BLOCK * width, 1, 'float32', s), seed, s), [1, 1, BLOCK, width], s)));
const tensorBytes = (t) => ({
  dtype: 'F32',
  shape: mx.shapeOf(t),
  byteLength: mx.nbytes(t),
  copyTo: (target, from) => mx.readBytes(t, from, target),
  bulk: { reader: tensorReader, eachPiece: (from, length, visit) => visit(t, from, length, 0) },
});
const zeros = (length) => ({ dtype: 'U8', shape: [length], byteLength: length, copyTo: (target) => target.fill(0) });

function leaseUnits() {
  const hasher = new ChainHasher(identity);
  let parent = '';
  for (let start = 0; start < 2 * BLOCK; start += BLOCK) {
    const own = tokens.slice(start, start + BLOCK);
    const hash = hasher.block(parent, own);
    const t = rowsOf(start);
    mx.evaluate([t]);
    const kv = [{ className: 'KVCache', stored: 'slice', range: [start, start + BLOCK], meta: [start + BLOCK], elements: [tensorBytes(t)] }];
    const unit = {
      requestNo: 1,
      requestId: 'r',
      tokenCount: start + BLOCK,
      hash,
      parent,
      tokens: own,
      blockSize: BLOCK,
      fingerprint: 'model',
      kv,
      hasState: false,
    };
    const plan = new CopyPlan();
    const place = placeBlock(session, unit, plan);
    if (!book.give(session, place.ref, plan, null)) throw new Error('the rows could not be leased');
    mx.release(t);
    if (place.queue() !== 'queued') throw new Error('the unit was not queued');
    parent = hash;
  }
  session.storeBell.ring();
}

/** Without a turn of this thread's loop. */
function restored() {
  const client = new RestoreClient(memory.restore, session.storeBell);
  const ticket = client.begin({ ...identity, tokens, maxTokens: tokens.length, blockSize: BLOCK, needs: { kv: true, state: false }, deadlineMs: 20_000 });
  let right = true;
  for (;;) {
    const event = ticket.next(1_000);
    if (event.type === 'waiting') continue;
    if (event.type !== 'part') return { type: event.type, tokenCount: event.tokenCount, right };
    const [element] = event.layers[0].elements;
    const got = new Uint8Array(element.byteLength);
    element.copyTo(got, 0);
    right &&= new Float32Array(got.buffer).every((value, i) => value === i + event.start);
    event.release();
  }
}

leaseUnits();
parentPort.postMessage('leased');
if (args.die === true) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50_000);
}
if (args.untilReleased === true) {
  const end = performance.now() + 20_000;
  while (book.count === 2 && performance.now() < end) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    book.reap();
  }
  if (book.count === 1) parentPort.postMessage('released');
}
const results = [];
for (let i = 1; i <= saves; i++) {
  const saved = store.save('r', 1000 * i, [{ className: 'ArraysCache', stored: 'whole', meta: [], elements: [zeros(bytes)] }]);
  results.push(saved.ok ? saved.how : saved.reason);
}
const until = performance.now() + 20_000;
const pause = new Int32Array(new SharedArrayBuffer(4));
while (session.itemsInFlight > 0 && performance.now() < until) Atomics.wait(pause, 0, 0, 5);
const given = book.count;
book.reap();
const result = { results, given, left: book.count, held: session.pending.held, ledger: session.ledger.read(), restored: restored() };
mx.synchronize(s);
self.leave();
parentPort.postMessage({ result });
