/** Mutants for conformance A: keys, paths, round trip. See scripts/mutants.mjs. */
export default [
  {
    name: 'meta state loses its numbers',
    checks: [1],
    edits: [{ file: 'src/shared/blocks/layer-tree.ts', find: '      meta: encodeMeta(layer.meta),', replace: '      meta: layer.meta.map(String),' }],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A1]' }],
  },
  {
    name: 'a placeholder forgets its class',
    checks: [2],
    edits: [
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: '      class: layer.className,\n      stored',
        replace: "      class: layer.stored === 'none' ? 'None' : layer.className,\n      stored",
      },
    ],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A2]' }],
  },
  {
    name: 'a pending boundary is found by its request alone',
    checks: [3],
    edits: [
      {
        file: 'src/shared/session/item-table.ts',
        find: 'words[record + ITEM.visible] === 1 && words[record + ITEM.tokenCount] === tokenCount && this.hasKey(item, key)',
        replace: 'words[record + ITEM.visible] === 1 && tokenCount > 0 && this.hasKey(item, key)',
      },
    ],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A3]' }],
  },
  {
    name: 'a record is found under another request',
    checks: [4, 13],
    edits: [
      {
        file: 'src/shared/session/registry.ts',
        find: 'words[at + RECORD.state] !== FILE_STATE.none && keyIsAt(words, at + RECORD.key, key)) return index;',
        replace: 'words[at + RECORD.state] !== FILE_STATE.none && key.length > 0) return index;',
      },
    ],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A4]' }],
  },
  {
    name: 'a capture without layers is stored',
    checks: [5],
    edits: [{ file: 'src/engine-thread/boundary/save.ts', find: 'if (captured.length === 0) return', replace: 'if (captured.length < 0) return' }],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A5]' }],
  },
  {
    name: 'a capture that fails ends the answer',
    checks: [6],
    edits: [
      { file: 'src/engine-thread/boundary/recorder.ts', find: "if (code === 'DEVICE_LOST') throw error;", replace: 'if (code !== undefined) throw error;' },
    ],
    tests: [{ file: 'test/boundary/recorder.test.ts', title: '[A6]' }],
  },
  {
    name: 'a failed copy leaves its bytes counted',
    checks: [6],
    edits: [
      {
        file: 'src/engine-thread/boundary/save.ts',
        find: '      space.dropBytes(ref.item);\n      space.free(ref.item);',
        replace: '      space.free(ref.item);',
      },
    ],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A6]' }],
  },
  {
    name: 'request folders are not hexadecimal',
    checks: [7],
    edits: [{ file: 'src/shared/session/request-key.ts', find: "  return bytes.toString('hex');", replace: "  return bytes.toString('base64url');" }],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A7]' }],
  },
  {
    name: 'a fractional token count is a name',
    checks: [8],
    edits: [{ file: 'src/shared/session/request-key.ts', find: 'Number.isInteger(value) && value > 0', replace: 'value > 0' }],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A8]' }],
  },
  {
    name: 'a link in the place of a file is read',
    checks: [9],
    edits: [
      {
        file: 'src/shared/files.ts',
        find: 'fs.openSync(path, O_RDONLY | O_NOFOLLOW);\n      if (fs.fstatSync',
        replace: 'fs.openSync(path, O_RDONLY);\n      if (fs.fstatSync',
      },
    ],
    tests: [{ file: 'test/boundary/links-and-damage.test.ts', title: '[A9]' }],
  },
  {
    name: 'a link in the place of a folder is followed',
    checks: [9],
    edits: [{ file: 'src/shared/files.ts', find: "if (kind === 'folder') return;", replace: "if (kind === 'folder' || (kind as string) === 'link') return;" }],
    tests: [{ file: 'test/boundary/links-and-damage.test.ts', title: '[A9]' }],
  },
  {
    name: 'any format version is read',
    checks: [10, 83],
    edits: [{ file: 'src/shared/blocks/image-parse.ts', find: "if (version !== '1') return miss", replace: "if (version === '') return miss" }],
    tests: [{ file: 'test/boundary/links-and-damage.test.ts', title: '[A10]' }],
  },
  {
    name: 'payload checksums are not compared',
    checks: [11],
    edits: [{ file: 'src/shared/blocks/image-parse.ts', find: 'if (actual !== tensor.sum) return miss', replace: "if (actual === '') return miss" }],
    tests: [{ file: 'test/boundary/links-and-damage.test.ts', title: '[A11]' }],
  },
  {
    name: 'the header checksum is not compared',
    checks: [11],
    edits: [{ file: 'src/shared/blocks/image-parse.ts', find: "if (actual !== metadata['tm.header']) return miss", replace: "if (actual === '') return miss" }],
    tests: [{ file: 'test/boundary/links-and-damage.test.ts', title: '[A11]' }],
  },
  {
    name: 'the length of a file is not compared with its header',
    checks: [12],
    edits: [{ file: 'src/shared/blocks/image-parse.ts', find: 'if (totalBytes !== fileBytes) return miss', replace: 'if (totalBytes < 0) return miss' }],
    tests: [{ file: 'test/boundary/links-and-damage.test.ts', title: '[A12]' }],
  },
  {
    name: 'sessions share one staging folder',
    checks: [13],
    edits: [
      {
        file: 'src/shared/session/session.ts',
        find: 'stagingDir: join(options.stagingRoot, id),',
        replace: "stagingDir: join(options.stagingRoot, id.slice(0, 0) + 'shared'),",
      },
    ],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A13]' }],
  },
  {
    name: 'staging of the living is removed',
    checks: [14],
    edits: [
      {
        file: 'src/shared/staging.ts',
        find: "    if (typeof fd !== 'number') continue;\n    try {\n      files.removeTree",
        replace: '    try {\n      files.removeTree',
      },
      {
        file: 'src/shared/staging.ts',
        find: '    } finally {\n      locks.flockRelease(fd);\n    }\n  }\n  return removed;',
        replace: "    } finally {\n      if (typeof fd === 'number') locks.flockRelease(fd);\n    }\n  }\n  return removed;",
      },
    ],
    tests: [{ file: 'test/boundary/dead-sessions.test.ts', title: '[A14]' }],
  },
  {
    name: 'staging of the dead is kept',
    checks: [14],
    edits: [
      {
        file: 'src/shared/staging.ts',
        find: "    const fd = locks.flockTry(lockPath);\n    if (typeof fd !== 'number') continue;",
        replace: "    const fd = locks.flockTry(lockPath);\n    if (typeof fd !== 'number' || fd >= 0) continue;",
      },
    ],
    tests: [{ file: 'test/boundary/dead-sessions.test.ts', title: '[A14]' }],
  },
  {
    name: 'files are readable for everybody',
    checks: [15],
    edits: [{ file: 'src/shared/files.ts', find: 'O_NOFOLLOW, 0o600)', replace: 'O_NOFOLLOW, 0o644)' }],
    tests: [{ file: 'test/boundary/round-trip.test.ts', title: '[A15]' }],
  },
];
