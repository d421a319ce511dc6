/**
 * Stores a chain of blocks with the real drain loop and kills itself with SIGKILL before its N-th file operation. Says every
 * durable boundary on standard output, unbuffered. Arguments: cache folder, N, blocks.
 */
import { mkdirSync, writeFileSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { MessageChannel } from 'node:worker_threads';
import { publishBlock } from '../../dist/engine-thread/boundary/publish.js';
import { ChainHasher } from '../../dist/shared/blocks/identity.js';
import { buildImage } from '../../dist/shared/blocks/image.js';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { Mailbox } from '../../dist/shared/mailbox.js';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { attachSession, createSessionMemory, requestKey } from '../../dist/shared/session/index.js';
import { FILE_STATE, RECORD } from '../../dist/shared/session/registry.js';
import { ensureStagingRoot, stagedPath, stagingRootOf } from '../../dist/shared/staging.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { BlockStore } from '../../dist/store-worker/block-store.js';
import { DrainLoop } from '../../dist/store-worker/drain-loop.js';

const [dir, at, blocks] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const BLOCK = 16;
let operations = 0;
const files = new Files({
  before() {
    operations += 1;
    if (operations === at) process.kill(process.pid, 'SIGKILL');
  },
});

const plainFiles = new Files();
plainFiles.ensureFolder(dir);
ensureStagingRoot(stagingRootOf(dir), plainFiles);
const { threads } = createProcessShared();
const hub = HubControl.create();
const control = new HubControl(hub).store;
const memory = createSessionMemory({ stagingRoot: stagingRootOf(dir), hub, number: 1, limits: { pendingMaxBytes: 1 << 22, pageBytes: 4096 } });
const session = attachSession(memory, new ThreadTable(threads).enter('engine', 'engine', { mayBlock: true }));

const content = Uint8Array.from({ length: 16 * 4 * 4 }, (_, i) => i & 255);
const tensor = (shape) => {
  const byteLength = shape.reduce((a, b) => a * b, 4);
  return { dtype: 'F32', shape, byteLength, copyTo: (target, from) => target.set(content.subarray(from, from + target.length)) };
};
const hasher = new ChainHasher({ fingerprint: 'model', extraKeys: [] });
const key = requestKey('r');
let parent = '';
for (let i = 0; i < blocks; i += 1) {
  const tokens = Uint32Array.from({ length: BLOCK }, (_, j) => i * BLOCK + j);
  const hash = hasher.block(parent, tokens);
  const [start, end] = [i * BLOCK, (i + 1) * BLOCK];
  const common = { blockHash: hash, parentHash: parent, start, end, blockSize: BLOCK, tokens, fingerprint: 'model' };
  const state = [
    { className: 'ArraysCache', stored: 'whole', meta: [], elements: [tensor([1, 3, 4])] },
    { className: 'KVCache', stored: 'none', meta: [], elements: [] },
  ];
  const path = stagedPath(memory.stagingDir, key, end);
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  writeFileSync(path, buildImage({ ...common, part: 'state', layers: state }), { mode: 0o600 });
  session.ledger.capture();
  session.ledger.move('pending', 'written');
  session.underRegistry('test', () => session.registry.set(session.registry.insert(key, end, 1, 0), RECORD.state, FILE_STATE.file));
  const kv = [
    { className: 'ArraysCache', stored: 'none', meta: [], elements: [] },
    { className: 'KVCache', stored: 'slice', range: [start, end], meta: [], elements: [tensor([1, 1, 16, 4])] },
  ];
  publishBlock(session, { requestNo: 1, requestId: 'r', tokenCount: end, hash, parent, tokens, blockSize: BLOCK, fingerprint: 'model', kv, hasState: true });
  parent = hash;
}

const { port1, port2 } = new MessageChannel();
port1.postMessage({ type: 'attach', session: 1, memory });
control.requestStop('drain');
const post = (event) => {
  if (event.type === 'durable') writeSync(1, `${JSON.stringify({ durable: event.tokenCount })}\n`);
  if (event.type === 'failed' || event.type === 'degraded') writeSync(1, `${JSON.stringify(event)}\n`);
};
const openStore = (emit) => new BlockStore({ files, cacheDir: dir, mode: 'writer', maxBytes: 2 ** 30, emit });
new DrainLoop({
  control,
  mailbox: new Mailbox(port2),
  self: new ThreadTable(threads).enter('store-worker', 'store', { mayBlock: true }),
  post,
  openStore,
}).run();
port1.close();
writeSync(1, `${JSON.stringify({ operations })}\n`);
