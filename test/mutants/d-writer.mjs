/** Mutants for conformance D: the writer. See scripts/mutants.mjs. */
const writer = 'test/boundary/writer.test.ts';

export default [
  {
    name: 'the writer lets go of writerBusy before it writes',
    checks: [52],
    edits: [
      {
        file: 'src/snapshot-writer/session-queue.ts',
        find: "        const next = this.#next();\n        if (next !== null) this.#write(next);\n        return 'worked';\n      } finally {\n        session.locks.writerBusy.release();\n      }",
        replace:
          "      } finally {\n        session.locks.writerBusy.release();\n      }\n      const next = this.#next();\n      if (next !== null) this.#write(next);\n      return 'worked';",
      },
    ],
    tests: [{ file: writer, title: '[D52] one thread of that name' }],
  },
  {
    name: 'a staged file is not synced',
    checks: [53],
    edits: [{ file: 'src/snapshot-writer/write-item.ts', find: '    files.sync(fd, path);\n', replace: '' }],
    tests: [{ file: writer, title: '[D53]' }],
  },
  {
    name: 'bytes go back before the rename',
    checks: [53],
    edits: [
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: '    files.rename(temporary, final);\n',
        replace: "    session.underPending('early', () => session.space.dropBytes(ref.item));\n    files.rename(temporary, final);\n",
      },
    ],
    tests: [{ file: writer, title: '[D53]' }],
  },
  {
    name: 'a generation is used twice',
    checks: [54, 62],
    edits: [{ file: 'src/shared/session/item-table.ts', find: 'const generation = (this.words[0]! % 0x3fffffff) + 1;', replace: 'const generation = 1;' }],
    tests: [
      { file: 'test/boundary/cleanup.test.ts', title: '[D54]' },
      { file: 'test/boundary/cleanup.test.ts', title: '[E62]' },
      { file: writer, title: '[D54]' },
    ],
  },
  {
    name: 'an item that ended before the writer took it is written all the same',
    checks: [54],
    edits: [
      {
        file: 'src/shared/session/publication.ts',
        find: '    if (state === STATE.queued && items.get(ref.item, ITEM.decision) === DECISION.waiting) {',
        replace: '    if (state === STATE.queued || state === STATE.spent) {',
      },
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: "      if (items.get(ref.item, ITEM.decision) !== DECISION.waiting) throw new Stopped('cancelled');\n",
        replace: '',
      },
    ],
    tests: [{ file: writer, title: '[D54]' }],
  },
  {
    name: 'a write that failed leaves its files',
    checks: [55],
    edits: [{ file: 'src/snapshot-writer/write-item.ts', find: '  for (const path of paths) {', replace: '  for (const path of paths.slice(0, 0)) {' }],
    tests: [{ file: writer, title: '[D55] EIO from fsync' }],
  },
  {
    name: 'an error of the disk ends the writer',
    checks: [55],
    edits: [
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: '    return giveUp(session, ref, files, error, renamed',
        replace: '    if (!(error instanceof Stopped)) throw error;\n    return giveUp(session, ref, files, error, renamed',
      },
    ],
    tests: [{ file: writer, title: '[D55] ENOSPC from pwrite' }],
  },
  {
    name: 'the earlier file of a boundary that fails stays',
    checks: [55],
    edits: [
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: 'renamed || !(error instanceof Stopped) ? [temporary, final]',
        replace: 'renamed ? [temporary, final]',
      },
    ],
    tests: [{ file: writer, title: '[D55] a failure of a boundary that was on disk before' }],
  },
  {
    name: 'a cancel mark is not looked at after the rename',
    checks: [56],
    edits: [{ file: 'src/shared/session/publication.ts', find: "    if (items.isCancelled(ref.item)) return 'cancelled';\n", replace: '' }],
    tests: [{ file: writer, title: '[D56] cancelled after the rename' }],
  },
  {
    name: 'a payload is written twice',
    checks: [57],
    edits: [
      {
        file: 'src/snapshot-writer/write-item.ts',
        find: '    files.writeAll(fd, segment, at, path);\n',
        replace: '    files.writeAll(fd, segment, at, path);\n    files.writeAll(fd, segment, at, path);\n',
      },
    ],
    tests: [{ file: writer, title: '[D57]' }],
  },
  {
    name: 'durable is said before the parents are',
    checks: [58],
    edits: [
      {
        file: 'src/store-worker/unit-job.ts',
        find: '    if (chained()) boundaries.durable(unit.block, boundary);',
        replace: '    if (chained() || needs.kv) boundaries.durable(unit.block, boundary);',
      },
    ],
    tests: [{ file: 'test/blocks/publish-restore.test.ts', title: '[D58] a block whose parent is missing' }],
  },
  {
    name: 'an error of a directory sync is passed over',
    checks: [58],
    edits: [
      {
        file: 'src/store-worker/block-store.ts',
        find: '      if (published.length > 0) this.files.syncFolder(this.paths.fanOut(block.hash));\n',
        replace:
          '      try {\n        if (published.length > 0) this.files.syncFolder(this.paths.fanOut(block.hash));\n      } catch (error) {\n        void error;\n      }\n',
      },
    ],
    tests: [{ file: 'test/blocks/units-are-counted.test.ts', title: '[D58] an error' }],
  },
];
