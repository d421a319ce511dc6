/** Mutants for conformance E and F: cleanup and its races, staged files. See scripts/mutants.mjs. */
const cleanup = 'test/boundary/cleanup.test.ts';
const staged = 'test/boundary/staged-files.test.ts';

export default [
  {
    name: 'cleaning one request forgets all',
    checks: [59],
    edits: [
      {
        file: 'src/engine-thread/boundary/snapshot-store.ts',
        find: 'const { inFlight, condemned } = forget(this.session, key);',
        replace: 'const { inFlight, condemned } = forget(this.session, null);',
      },
    ],
    tests: [{ file: cleanup, title: '[E59]' }],
  },
  {
    name: 'cleanupAll forgets nothing',
    checks: [60],
    edits: [{ file: 'src/engine-thread/boundary/snapshot-store.ts', find: '        forget(this.session, null);\n', replace: '' }],
    tests: [{ file: cleanup, title: '[E60]' }],
  },
  {
    name: 'cleanup does not wait for the writer',
    checks: [61],
    edits: [
      { file: 'src/engine-thread/boundary/snapshot-store.ts', find: '!writerBusy.acquire(limitMs, key', replace: '!writerBusy.acquire(limitMs * 0, key' },
    ],
    tests: [{ file: cleanup, title: '[E61]' }],
  },
  {
    name: 'an item that the writer holds gets no cancel mark',
    checks: [62, 63],
    edits: [
      {
        file: 'src/shared/session/publication.ts',
        find: 'if (decision === DECISION.cancelled) items.set',
        replace: 'if (decision === DECISION.cancelled && items.get(item, ITEM.state) === STATE.queued) items.set',
      },
    ],
    tests: [{ file: cleanup, title: '[E62]' }],
  },
  {
    name: 'the writer leaves the file of a request that was cleaned meanwhile',
    checks: [63],
    edits: [
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: 'renamed || !(error instanceof Stopped) ? [temporary, final]',
        replace: '(renamed && ref.item < 0) || !(error instanceof Stopped) ? [temporary, final]',
      },
    ],
    tests: [{ file: cleanup, title: '[E63] with the limit passed while the writer is held at rename (after)' }],
  },
  {
    name: 'cleaning a request without anything waits for the writer',
    checks: [64],
    edits: [
      {
        file: 'src/engine-thread/boundary/snapshot-store.ts',
        find: 'if (inFlight === 0 && condemned === 0) return',
        replace: 'if (inFlight < 0 && condemned === 0) return',
      },
    ],
    tests: [{ file: cleanup, title: '[E64]' }],
  },
  {
    name: 'an inline write does not look whether it was cancelled while it waited',
    checks: [65],
    edits: [
      {
        file: 'src/shared/session/publication.ts',
        find: '    if (state === STATE.queued && items.get(ref.item, ITEM.decision) === DECISION.waiting) {',
        replace: '    if (state === STATE.queued || (state === STATE.spent && items.has(ref.item, FLAG.inline))) {',
      },
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: "      if (items.get(ref.item, ITEM.decision) !== DECISION.waiting) throw new Stopped('cancelled');\n",
        replace: '',
      },
    ],
    tests: [{ file: cleanup, title: '[E65]' }],
  },
  {
    name: 'empty request folders stay',
    checks: [61],
    edits: [{ file: 'src/shared/session/cleanup.ts', find: '  if (used) return null;\n', replace: '  if (used || ending >= 0) return null;\n' }],
    tests: [{ file: cleanup, title: '[E61] cleanupRequest' }],
  },
  {
    name: 'a record outlives its file',
    checks: [66],
    edits: [
      {
        file: 'src/shared/session/publication.ts',
        find: '    if (index >= 0) registry.remove(index);\n    const settled',
        replace: '    if (index >= 1_000_000) registry.remove(index);\n    const settled',
      },
    ],
    tests: [{ file: 'test/boundary/hammer.test.ts', title: '[E66] also with' }],
  },
  {
    name: 'cleanup takes the staged file of a unit that is being stored',
    checks: [67],
    edits: [
      {
        file: 'src/shared/session/cleanup.ts',
        find: '    items.raise(item, FLAG.requestEnded);\n    return true;',
        replace: '    items.raise(item, FLAG.requestEnded);\n    return false;',
      },
    ],
    tests: [{ file: cleanup, title: '[E67]' }],
  },
  {
    name: 'a stop is forgotten when the queue was found empty',
    checks: [68],
    edits: [
      {
        file: 'src/snapshot-writer/loop.ts',
        find: '        if (draining) break;\n',
        replace: '        if (draining && !this.#parts.self.mayBlock) break;\n',
      },
    ],
    tests: [{ file: cleanup, title: '[E68]' }],
  },
  {
    name: 'cleanup waits on the engine thread too',
    checks: [69],
    edits: [
      {
        file: 'src/engine-thread/boundary/snapshot-store.ts',
        find: "session.self.table.read(session.self.slot).kind !== 'engine'",
        replace: "session.self.table.read(session.self.slot).kind !== 'main'",
      },
    ],
    tests: [{ file: cleanup, title: '[E69]' }],
  },
  {
    name: 'a taken file is still known',
    checks: [70],
    edits: [
      {
        file: 'src/shared/session/staged-files.ts',
        find: "      registry.remove(record.index);\n      if (failure === 'ENOENT')",
        replace: "      registry.set(record.index, RECORD.state, FILE_STATE.file);\n      if (failure === 'ENOENT')",
      },
    ],
    tests: [{ file: staged, title: '[F70]' }],
  },
  {
    name: 'taking does not wait for the write',
    checks: [70],
    edits: [
      {
        file: 'src/shared/session/staged-files.ts',
        find: "if (left <= 0 || session.state === 'failed') return 'busy';",
        replace: "if (left <= 1e9 || session.state === 'failed') return 'busy';",
      },
    ],
    tests: [{ file: staged, title: '[F70]' }],
  },
  {
    name: 'cleanup removes what is being detached',
    checks: [71],
    edits: [
      {
        file: 'src/shared/session/cleanup.ts',
        find: 'if (record.state === FILE_STATE.detaching && !session.self',
        replace: 'if (record.state === FILE_STATE.detaching && session.self',
      },
    ],
    tests: [{ file: staged, title: '[F71] cleanup leaves a file alone' }],
  },
  {
    name: 'what could not be renamed away is known again although it was cleaned',
    checks: [71],
    edits: [{ file: 'src/shared/session/cleanup.ts', find: 'registry.set(index, RECORD.forgotten, 1);', replace: 'registry.set(index, RECORD.forgotten, 0);' }],
    tests: [{ file: staged, title: '[F71] a file that could not be renamed' }],
  },
  {
    name: 'a link is taken for a staged file',
    checks: [72],
    edits: [
      {
        file: 'src/shared/session/staged-files.ts',
        find: "    if (kind !== 'file') return kind === 'missing'",
        replace: "    if (kind === 'missing') return kind === 'missing'",
      },
    ],
    tests: [{ file: staged, title: '[F72] a wait that runs out' }],
  },
  {
    name: 'taken files of the dead stay',
    checks: [73],
    edits: [
      {
        file: 'src/shared/staging.ts',
        find: '      files.removeTree(join(stagingRoot, session));\n      removePromoted(stagingRoot, files, (owner) => owner === session);\n      files.removeFile(lockPath);',
        replace: '      files.removeTree(join(stagingRoot, session));\n      files.removeFile(lockPath);',
      },
    ],
    tests: [{ file: staged, title: '[F73]' }],
  },
];
