/** Mutants of leases: bytes that another thread copies out of MLX's buffers. See scripts/mutants.mjs. */
const fill = 'src/shared/session/leases.ts';
const book = 'src/engine-thread/boundary/lease-book.ts';
const client = 'src/engine-thread/engine-store-client.ts';
const jobs = 'test/leases/lease-jobs.test.ts';
const engines = 'test/leases/engines-lease.test.ts';

const mutant = (name, checks, file, find, replace, tests) => ({ name, checks, edits: [{ file, find, replace }], tests });

export default [
  mutant(
    'the writer does not fill what was leased',
    [96],
    'src/snapshot-writer/write-item.ts',
    '    fill(session, ref);\n',
    '    if (session.leases === undefined) fill(session, ref);\n',
    [{ file: engines, title: 'answers after a restore' }],
  ),
  mutant(
    'the store worker does not fill what was leased',
    [93, 96],
    'src/store-worker/unit-job.ts',
    '    fillLeased(session, unit);\n',
    '    void session;\n',
    [{ file: jobs, title: '[I93][I98] are both' }],
  ),
  mutant('one slice of a lease is taken for all', [96, 97], fill, 'while (copySlice(leases, lease, arena) > 0);', 'copySlice(leases, lease, arena);', [
    { file: jobs, title: '[I97] a lease that takes' },
  ]),
  mutant(
    'a lease is copied without bufferAccess',
    [96, 97],
    fill,
    "if (!bufferAccess.acquire(LEASE_LOCK_TIMEOUT_MS, 'lease slice')) {",
    'if (LEASE_LOCK_TIMEOUT_MS < 0) {',
    [{ file: jobs, title: '[I97] a lease that takes' }],
  ),
  mutant('a filled item is not released', [96], fill, '  items.set(item, ITEM.lease, 0);\n', '', [{ file: jobs, title: '[I97] the arrays are let go' }]),
  mutant('the engine drops a lease at its next step, copied or not', [96], book, '      if (isNeeded(given)) return true;\n', '', [
    { file: engines, title: 'an engine that is closed' },
  ]),
  mutant('the engine never drops a lease', [96], book, '    this.#given = this.#given.filter((given) => {', '    this.#given.filter((given) => {', [
    { file: jobs, title: '[I93][I98] are both' },
  ]),
  mutant(
    'an engine that ends leaves its leases to others',
    [96],
    book,
    'if (isNeeded(given)) fillLeased(given.session, given.ref);',
    'if (isNeeded(given) && given.lease < 0) fillLeased(given.session, given.ref);',
    [{ file: engines, title: 'an engine that is closed' }],
  ),
  mutant(
    'rows of a living cache are leased',
    [101],
    client,
    'const leasesRows = this.#isLeased(block.kv, block.finished) &&',
    'const leasesRows = this.#isLeased(block.kv, true) &&',
    [{ file: engines, title: '[I101] rows of a living cache' }],
  ),
  mutant(
    'an item outside of the arena is leased',
    [101],
    book,
    'if (session.items.has(ref.item, FLAG.oversize)) return false;',
    'if (session.items.has(ref.item, FLAG.oversize) && rowsOf === null) return false;',
    [{ file: engines, title: '[I101] rows of a block that is larger' }],
  ),
  mutant('a ring that is written in place is leased', [101], book, "new Set(['ArraysCache'])", "new Set(['ArraysCache', 'RotatingKVCache'])", [
    { file: 'test/leases/what-may-be-leased.test.ts', title: '[I101] of a living sequence' },
  ]),
];
