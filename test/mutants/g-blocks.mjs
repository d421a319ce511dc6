/** Mutants for conformance G and H: block store, index, eviction, size. See scripts/mutants.mjs. */
const restore = 'test/blocks/publish-restore.test.ts';
const fallback = 'test/blocks/restore-fallback.test.ts';
const space = 'test/blocks/space.test.ts';
const counted = 'test/blocks/units-are-counted.test.ts';
const formats = 'test/blocks/other-formats.test.ts';

export default [
  {
    name: 'the ranges of layers are lost',
    checks: [74],
    edits: [
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: '      ...range,\n      meta: encodeMeta',
        replace: '      ...(i < 0 ? range : {}),\n      meta: encodeMeta',
      },
    ],
    tests: [{ file: 'test/blocks/image-roundtrip.test.ts', title: '[G74]' }],
  },
  {
    name: 'a unit takes the place of a state when its own are full',
    checks: [75, 76, 77],
    edits: [
      {
        file: 'src/shared/session/item-space.ts',
        find: 'this.table.claim(firstUnit, itemCount, kind)',
        replace: 'this.table.claim(Math.max(0, firstUnit - 3), itemCount, kind)',
      },
    ],
    tests: [{ file: 'test/blocks/units.test.ts', title: '[G75][G76]' }],
  },
  {
    name: 'units do not count against the cap',
    checks: [77],
    edits: [
      {
        file: 'src/shared/session/item-space.ts',
        find: "    if (bytes > reserved && !this.#fitsBeside(reserved, bytes)) return 'bytes';",
        replace: "    if (kind !== KIND.unit && bytes > reserved && !this.#fitsBeside(reserved, bytes)) return 'bytes';",
      },
    ],
    tests: [{ file: counted, title: '[G77]' }],
  },
  {
    name: 'a stored block is written again',
    checks: [78],
    edits: [
      {
        file: 'src/store-worker/unit-job.ts',
        find: "const wantsKv = image.tensors.size > 0 && !store.hasPart(hash, 'kv');",
        replace: 'const wantsKv = image.tensors.size > 0;',
      },
    ],
    tests: [{ file: restore, title: '[G78]' }],
  },
  {
    name: 'storing again renews no recency',
    checks: [78],
    edits: [{ file: 'src/shared/blocks/index-db.ts', find: ', last_used = max(last_used, excluded.last_used)`', replace: '`' }],
    tests: [{ file: formats, title: '[G78] is not written' }],
  },
  {
    name: 'a file that is replaced stays a foreign one',
    checks: [78],
    edits: [
      { file: 'src/store-worker/block-store.ts', find: '        this.#replaced(target);\n', replace: '' },
      { file: 'src/store-worker/block-store.ts', find: '  #replaced(path: string): void {', replace: '  replaced(path: string): void {' },
    ],
    tests: [{ file: formats, title: '[G78] takes the place' }],
  },
  {
    name: 'a damaged block stays',
    checks: [79],
    edits: [
      {
        file: 'src/store-worker/restore-job.ts',
        find: "else if (part === 'kv') this.#store.discard(block.hash);",
        replace: "else if (part === 'kv') this.#store.row(block.hash);",
      },
    ],
    tests: [{ file: fallback, title: '[G79] a damaged kv part in the middle' }],
  },
  {
    name: 'a part that fails its checksum is handed over',
    checks: [79],
    edits: [
      {
        file: 'src/store-worker/restore-job.ts',
        find: '      if (!image.ok) return image;\n',
        replace: "      if (!image.ok && image.reason !== 'checksum') return image;\n",
      },
      {
        file: 'src/store-worker/restore-job.ts',
        find: "continues: part === 'state' && continuesEarlier",
        replace: "continues: image.ok && part === 'state' && continuesEarlier",
      },
    ],
    tests: [{ file: fallback, title: '[G79] a damaged kv part in the middle' }],
  },
  {
    name: 'free space is not asked for again after ENOSPC',
    checks: [80],
    edits: [
      {
        file: 'src/store-worker/unit-job.ts',
        find: "if (errno === 'ENOSPC' || errno === 'SQLITE_FULL') store.space.invalidate();",
        replace: "if (errno === 'SQLITE_FULL') store.space.invalidate();",
      },
    ],
    tests: [{ file: counted, title: '[G80]' }],
  },
  {
    name: 'a full disk is not named',
    checks: [80],
    edits: [{ file: 'src/store-worker/persistence.ts', find: "if (['ENOSPC', 'EDQUOT',", replace: "if (['EDQUOT'," }],
    tests: [{ file: counted, title: '[G80]' }],
  },
  {
    name: 'the folder of a block is not synced',
    checks: [58, 81],
    edits: [
      { file: 'src/store-worker/block-store.ts', find: '      if (published.length > 0) this.files.syncFolder(this.paths.fanOut(block.hash));\n', replace: '' },
    ],
    tests: [{ file: counted, title: '[G81]' }],
  },
  {
    name: 'a boundary counts as durable before its files are renamed',
    checks: [81],
    edits: [
      {
        file: 'src/store-worker/unit-job.ts',
        find: '    const { ready, continues } = collectParts(context, image, bytes, staged, leftOver);\n',
        replace:
          "    const { ready, continues } = collectParts(context, image, bytes, staged, leftOver);\n    if (from !== null) owner.session.ledger.move(from, 'durable');\n",
      },
      { file: 'src/store-worker/boundaries.ts', find: "      ledger.session.ledger.move(ledger.state, 'durable');\n", replace: '' },
    ],
    tests: [{ file: counted, title: '[G81]' }],
  },
  {
    name: 'a stop drops what is queued',
    checks: [82],
    edits: [{ file: 'src/store-worker/drain-loop.ts', find: "if (control.stop === 'now') break;", replace: "if ((control.stop as string) !== 'none') break;" }],
    tests: [{ file: counted, title: '[G82]' }],
  },
  {
    name: 'what a stop leaves is not counted',
    checks: [82],
    edits: [
      {
        file: 'src/store-worker/session-service.ts',
        find: "    for (const unit of left) failUnit(this.#context, this, unit, 'ESHUTDOWN', 'the store was stopped before this block was written');",
        replace: "    if (left.length < 0) failUnit(this.#context, this, left[0]!, 'ESHUTDOWN', 'the store was stopped before this block was written');",
      },
    ],
    tests: [{ file: 'test/blocks/units.test.ts', title: '[G82]' }],
  },
  {
    name: 'a scan removes files of a later version',
    checks: [83],
    edits: [{ file: 'src/store-worker/rebuild.ts', find: "(image.reason === 'version' || image.reason === 'io'", replace: "(image.reason === 'io'" }],
    tests: [{ file: formats, title: '[G83]' }],
  },
  {
    name: 'bytes of a stored unit stay held',
    checks: [84],
    edits: [
      {
        file: 'src/shared/session/units.ts',
        find: '    space.dropBytes(unit.item);\n    space.free(unit.item);\n    return orphan;',
        replace: '    space.free(unit.item);\n    return orphan;',
      },
    ],
    tests: [{ file: counted, title: '[G84]' }],
  },
  {
    name: 'a file of another version is removed when it is met',
    checks: [85],
    edits: [
      {
        file: 'src/store-worker/restore-job.ts',
        find: "if (miss.reason === 'version' || miss.reason === 'fingerprint') this.#store.forget",
        replace: "if (miss.reason === 'fingerprint') this.#store.forget",
      },
    ],
    tests: [{ file: fallback, title: '[G83][H85]' }],
  },
  {
    name: 'the hash of a block leaves the model out',
    checks: [85],
    edits: [
      { file: 'src/shared/blocks/identity.ts', find: 'lengthPrefixed(identity.fingerprint)', replace: 'lengthPrefixed(identity.fingerprint.slice(0, 0))' },
    ],
    tests: [{ file: formats, title: '[H85] of another model' }],
  },
  {
    name: 'the fingerprint leaves the configuration out',
    checks: [86],
    edits: [
      {
        file: 'src/engine-thread/models/fingerprint.ts',
        find: "field(hash, 'config', readFileSync(folder.configPath));",
        replace: "field(hash, 'config', readFileSync(folder.configPath).subarray(0, 0));",
      },
    ],
    tests: [{ file: 'test/models/folder-layouts-load-alike.test.ts', title: '[H86]' }],
  },
  {
    name: 'blocks in use go before files of other formats',
    checks: [87],
    edits: [
      {
        file: 'src/store-worker/eviction.ts',
        find: "store.foreign.filter((candidate) => candidate.path.endsWith('.safetensors'))",
        replace: "store.foreign.filter((candidate) => candidate.path.endsWith('.never'))",
      },
    ],
    tests: [{ file: space, title: '[H87]' }],
  },
  {
    name: 'the limit does not leave the last hundredth free',
    checks: [88],
    edits: [{ file: 'src/store-worker/space.ts', find: '* 0.99))', replace: '* 1))' }],
    tests: [{ file: space, title: '[H88]' }],
  },
  {
    name: 'free space is asked for each time',
    checks: [89],
    edits: [
      { file: 'src/store-worker/space.ts', find: 'if (now - this.#probedAt < this.#options.probeTtlMs) return;', replace: 'if (now < this.#probedAt) return;' },
    ],
    tests: [{ file: space, title: '[H89] without a probe' }],
  },
  {
    name: 'one save removes without a bound',
    checks: [90],
    edits: [{ file: 'src/store-worker/eviction.ts', find: 'export const FILES_PER_SAVE = 32;', replace: 'export const FILES_PER_SAVE = 3200;' }],
    tests: [{ file: space, title: '[H90] at most 32 files' }],
  },
  {
    name: 'parents go before their children',
    checks: [90],
    edits: [
      {
        file: 'src/shared/blocks/index-db.ts',
        find: 'FROM blocks b WHERE pinned = 0 AND NOT EXISTS (SELECT 1 FROM blocks c WHERE c.parent = b.hash) ORDER BY last_used, "end" DESC`',
        replace: 'FROM blocks b WHERE pinned = 0 ORDER BY last_used, "end"`',
      },
    ],
    tests: [{ file: space, title: '[H90] R21' }],
  },
  {
    name: 'a file that would not go is forgotten',
    checks: [91],
    edits: [
      {
        file: 'src/store-worker/block-store.ts',
        find: 'if (!this.#tryRemove(this.paths.block(row.hash, part))) return false;',
        replace: 'this.#tryRemove(this.paths.block(row.hash, part));',
      },
    ],
    tests: [{ file: space, title: '[H91]' }],
  },
  {
    name: 'a use renews no recency',
    checks: [92],
    edits: [{ file: 'src/store-worker/session-service.ts', find: '    this.#context.store.touch(job.restored);\n', replace: '' }],
    tests: [{ file: space, title: '[H92]' }],
  },
  {
    name: 'what was evicted is not remembered',
    checks: [90],
    edits: [{ file: 'src/store-worker/eviction.ts', find: '      store.withIndex((index) => index.rememberEvicted(row.hash));\n', replace: '' }],
    tests: [{ file: 'test/engine/misses-say-why.test.ts', title: 'evicted: was stored' }],
  },
];
