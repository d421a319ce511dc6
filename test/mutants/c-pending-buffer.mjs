/** Mutants for conformance C: pending buffer, cap and backpressure. See scripts/mutants.mjs. */
const buffer = 'test/boundary/pending-buffer.test.ts';
const overflow = 'test/boundary/overflow.test.ts';

export default [
  {
    name: 'the queue holds 64',
    checks: [37],
    edits: [{ file: 'src/shared/session/limits.ts', find: 'queueCapacity: 128', replace: 'queueCapacity: 64' }],
    tests: [{ file: buffer, title: '[C37]' }],
  },
  {
    name: 'the engine passes no cap on',
    checks: [37],
    edits: [
      {
        file: 'src/host/engine-store.ts',
        find: 'limits: { pendingMaxBytes, overflow }',
        replace: 'limits: { pendingMaxBytes: pendingMaxBytes * 0 + 1_048_576, overflow }',
      },
    ],
    tests: [{ file: 'test/engine/prefixes-stay-on-one-stream.test.ts', title: '[C37]' }],
  },
  {
    name: 'a pending entry is read from its file',
    checks: [38],
    edits: [
      {
        file: 'src/engine-thread/boundary/snapshot-store.ts',
        find: 'if (item >= 0) {\n        session.space.beginRead(item);',
        replace: 'if (item >= 1_000_000) {\n        session.space.beginRead(item);',
      },
    ],
    tests: [{ file: buffer, title: '[C38]' }],
  },
  {
    name: 'nothing larger than the cap is admitted',
    checks: [39],
    edits: [
      { file: 'src/shared/session/pending.ts', find: 'return held === 0 || held + bytes', replace: 'return held + bytes' },
      { file: 'src/shared/session/item-space.ts', find: 'return this.#pending.held === reserved || this', replace: 'return this' },
    ],
    tests: [{ file: buffer, title: '[C39]' }],
  },
  {
    name: 'each of two waits for room has the whole limit',
    checks: [41],
    edits: [{ file: 'src/engine-thread/boundary/save.ts', find: 'Math.max(0, until - now())', replace: 'Math.max(limits.reserveWaitMs, until - now())' }],
    tests: [{ file: overflow, title: '[C41] the waits for the express item' }],
  },
  {
    name: 'a release wakes nobody',
    checks: [40],
    edits: [{ file: 'src/shared/session/pending.ts', find: '    this.#owner.pendingCond.broadcast();\n', replace: '' }],
    tests: [{ file: buffer, title: '[C40]' }],
  },
  {
    name: 'a broadcast wakes one waiter and none that comes',
    checks: [40],
    edits: [
      {
        file: 'src/shared/sync/condition.ts',
        find: '    Atomics.add(words, at + SEQ, 1);\n    Atomics.notify(words, at + SEQ);',
        replace: '    Atomics.notify(words, at + SEQ, 1);',
      },
    ],
    tests: [{ file: 'test/sync/condition.test.ts', title: 'a broadcast between the ticket and the wait is not missed' }],
  },
  {
    name: 'write-through answers before the file is there',
    checks: [41],
    edits: [
      {
        file: 'src/engine-thread/boundary/overflow.ts',
        find: '    if (waitForResult(session, ref, limits.inlineWriteLimitMs)) return collect(session, ref);',
        replace: "    if (limits.inlineWriteLimitMs > 0) return { ok: true, how: 'written' };",
      },
    ],
    tests: [{ file: overflow, title: '[C41]' }],
  },
  {
    name: 'an express item counts against the cap',
    checks: [42],
    edits: [
      {
        file: 'src/shared/session/item-space.ts',
        find: '    return this.#place(item, bytes, 0);',
        replace: '    this.#pending.charge(bytes);\n    return this.#place(item, bytes, bytes);',
      },
    ],
    tests: [{ file: overflow, title: '[C42]' }],
  },
  {
    name: 'a full queue is waited for',
    checks: [42],
    edits: [
      {
        file: 'src/engine-thread/boundary/save.ts',
        find: "if (why === 'bytes') {",
        replace: "while (why === 'queue' && session.writerRing.length > 0);\n    if (why === 'bytes') {",
      },
    ],
    tests: [{ file: overflow, title: '[C42] a full queue is written through at once' }],
  },
  {
    name: 'time waited is not counted',
    checks: [43],
    edits: [
      {
        file: 'src/shared/session/pending.ts',
        find: '    this.addBackpressure(now() - begin);\n',
        replace: '    this.addBackpressure((now() - begin) * 0);\n',
      },
    ],
    tests: [{ file: buffer, title: '[C43]' }],
  },
  {
    name: 'a second save of the same boundary is queued beside the first',
    checks: [44],
    edits: [
      { file: 'src/engine-thread/boundary/save.ts', find: 'if (known === true) {', replace: 'if (known === true && session.state !== "open") {' },
      {
        file: 'src/shared/session/publication.ts',
        find: 'else if (items.findVisible(key, tokenCount) >= 0) outcome',
        replace: 'else if (items.findVisible(key, tokenCount) >= 1_000_000) outcome',
      },
    ],
    tests: [{ file: buffer, title: '[C44]' }],
  },
  {
    name: 'a written boundary leaves the pending buffer before the registry knows its file',
    checks: [45],
    edits: [
      {
        file: 'src/shared/session/publication.ts',
        find: "  return session.settleAll('written', () => {\n    if (items.isCancelled(ref.item)) return 'cancelled';",
        replace:
          "  const gap = session.settleAll('gap', () => {\n    const index = recordOf(session, ref);\n    if (index >= 0) registry.set(index, RECORD.state, FILE_STATE.condemned);\n    items.set(ref.item, ITEM.visible, 0);\n    return index;\n  });\n  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);\n  return session.settleAll('written', () => {\n    if (gap >= 0) registry.set(gap, RECORD.state, FILE_STATE.pending);\n    if (items.isCancelled(ref.item)) return 'cancelled';",
      },
    ],
    tests: [{ file: buffer, title: '[C45]' }],
  },
  {
    name: 'a reservation is given back twice',
    checks: [46],
    edits: [{ file: 'src/shared/session/pending.ts', find: '    this.#bytes = -1;\n', replace: '' }],
    tests: [{ file: buffer, title: '[C46] a reservation is given back once' }],
  },
  {
    name: 'an item that is admitted takes a page less than it needs',
    checks: [46],
    edits: [
      {
        file: 'src/shared/session/page-pool.ts',
        find: 'return Math.ceil(bytes / this.pageBytes);',
        replace: 'return Math.max(1, Math.floor(bytes / this.pageBytes));',
      },
    ],
    tests: [{ file: 'test/boundary/memory.test.ts', title: '[C46]' }],
  },
  {
    name: 'bytes of a cancelled item go back while the writer holds them',
    checks: [47, 48],
    edits: [
      {
        file: 'src/shared/session/publication.ts',
        find: '  if (items.get(item, ITEM.state) === STATE.queued) {\n    items.set(item, ITEM.state, STATE.spent);',
        replace:
          '  if (items.get(item, ITEM.state) === STATE.taken) space.dropBytes(item);\n  if (items.get(item, ITEM.state) === STATE.queued) {\n    items.set(item, ITEM.state, STATE.spent);',
      },
    ],
    tests: [{ file: buffer, title: '[C47][C48]' }],
  },
  {
    name: 'the cap looks at entries, not at bytes',
    checks: [48],
    edits: [
      {
        file: 'src/shared/session/item-space.ts',
        find: 'return this.#pending.held === reserved || this.#pending.fits(bytes - reserved);',
        replace:
          'const entries = Array.from({ length: this.table.count }, (_, item) => this.table.get(item, ITEM.visible)).includes(1);\n    return !entries || this.#pending.held === reserved || this.#pending.fits(bytes - reserved);',
      },
    ],
    tests: [{ file: buffer, title: '[C47][C48]' }],
  },
  {
    name: 'a reader does not keep the bytes of an item that ends',
    checks: [47],
    edits: [
      {
        file: 'src/shared/session/item-space.ts',
        find: '    if (table.get(item, ITEM.readers) > 0) {\n      table.raise(item, FLAG.bytesDue);\n      return;\n    }\n',
        replace: '',
      },
    ],
    tests: [{ file: buffer, title: '[C47] a reader keeps' }],
  },
  {
    name: 'write-through has no limit of its own',
    checks: [49],
    edits: [
      {
        file: 'src/engine-thread/boundary/overflow.ts',
        find: 'if (waitForResult(session, ref, limits.inlineWriteLimitMs))',
        replace: 'if (waitForResult(session, ref, limits.inlineWriteLimitMs + 60_000))',
      },
    ],
    tests: [{ file: overflow, title: '[C49] write-through gives up at its limit' }],
  },
  {
    name: 'the writer publishes what its saver has abandoned',
    checks: [49],
    edits: [
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: "    if (!items.decide(ref.item, DECISION.publishing)) throw new Stopped('cancelled');\n",
        replace: '    items.decide(ref.item, DECISION.publishing);\n',
      },
    ],
    tests: [{ file: overflow, title: '[C49] a write-through that the writer has begun is abandoned' }],
  },
  {
    name: 'a pending entry is copied under the lock',
    checks: [50],
    edits: [
      {
        file: 'src/engine-thread/boundary/snapshot-store.ts',
        find: 'copy = bytes === null ? null : bytes.slice(0, session.items.getBytes(item, ITEM.byteLength));',
        replace: "copy = bytes === null ? null : session.underPending('decode', () => bytes.slice(0, session.items.getBytes(item, ITEM.byteLength)));",
      },
    ],
    tests: [{ file: buffer, title: '[C50]' }],
  },
  {
    name: 'fresh pages are used before touched ones',
    checks: [51],
    edits: [
      {
        file: 'src/shared/session/page-pool.ts',
        find: '    if (warm === END) return words[FRESH_NEXT]!++;',
        replace: '    if (warm === END || words[FRESH_NEXT]! < words[CAPACITY]!) return words[FRESH_NEXT]!++;',
      },
    ],
    tests: [{ file: buffer, title: '[C51]' }],
  },
];
