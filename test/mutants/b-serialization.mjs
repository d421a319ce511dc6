/** Mutants for conformance B: save on the engine thread, serialization. See scripts/mutants.mjs. */
const serialization = 'test/boundary/serialization.test.ts';
const compaction = 'test/boundary/compaction.test.ts';
const codec = 'test/boundary/state-codec.test.ts';

export default [
  {
    name: 'the writer loads MLX',
    checks: [16],
    edits: [
      {
        file: 'src/snapshot-writer/main.ts',
        find: "import { WriterLoop } from './loop.ts';\n",
        replace: "import { mlx } from '../engine-thread/mlx/binding.ts';\nimport { WriterLoop } from './loop.ts';\n\nvoid mlx;\n",
      },
    ],
    tests: [{ file: serialization, title: '[B16]' }],
  },
  {
    name: 'the first bytes of a tensor are asked for twice',
    checks: [20],
    edits: [
      {
        file: 'src/shared/blocks/image.ts',
        find: '  plan.add(layout, target);\n  plan.run();',
        replace:
          '  for (const { byteLength, source } of layout.tensors) source.copyTo(new Uint8Array(Math.min(8, byteLength)), 0);\n  plan.add(layout, target);\n  plan.run();',
      },
    ],
    tests: [{ file: serialization, title: '[B20]' }],
  },
  {
    name: 'a file of the older layout is taken for a damaged one',
    checks: [24],
    edits: [
      {
        file: 'src/shared/blocks/image-parse.ts',
        find: "if (version === undefined) return miss('version',",
        replace: "if (version === undefined) return miss('format',",
      },
    ],
    tests: [{ file: serialization, title: '[B24]' }],
  },
  {
    name: 'rows that do not follow each other are joined',
    checks: [27],
    edits: [
      {
        file: 'src/engine-thread/boundary/join-states.ts',
        find: 'if (end !== wanted || ratio !== tip.ratio) return',
        replace: 'if (end < 0 || ratio !== tip.ratio) return',
      },
    ],
    tests: [{ file: compaction, title: '[B27] a missing part' }],
  },
  {
    name: 'pools are stored whole at each boundary',
    checks: [29],
    edits: [
      {
        file: 'src/engine-thread/boundary/prepare.ts',
        find: '  if (blockSize === undefined) return layers;\n',
        replace: '  if (blockSize !== 0) return layers;\n',
      },
    ],
    tests: [{ file: compaction, title: '[B29]' }],
  },
  {
    name: 'the point before the prompt’s last token is not captured',
    checks: [35],
    edits: [
      {
        file: 'src/engine-thread/sequence.ts',
        find: 'this.#shape.blockSize), this.#shape.stopBeforeLast && to === this.promptLength - 1);',
        replace: 'this.#shape.blockSize), to > this.promptLength);',
      },
    ],
    tests: [{ file: 'test/engine/boundaries-of-running-requests.test.ts', title: '[B35]' }],
  },
  {
    name: 'arrays are kept while a save waits',
    checks: [17],
    edits: [
      { file: 'src/engine-thread/boundary/save.ts', find: '    this.#request.options.onCopied?.();\n', replace: '' },
      {
        file: 'src/engine-thread/boundary/save.ts',
        find: "    if (typeof admitted !== 'string') {\n      this.#fill(admitted, image);",
        replace: "    if (typeof admitted !== 'string') {\n      this.#fill(admitted, image);\n      options.onCopied?.();",
      },
    ],
    tests: [{ file: serialization, title: '[B17]' }],
  },
  {
    name: 'bf16 has four bytes',
    checks: [18],
    edits: [{ file: 'src/shared/layer-state.ts', find: '  BF16: 2,', replace: '  BF16: 4,' }],
    tests: [{ file: serialization, title: '[B18]' }],
  },
  {
    name: 'a type travels without its name',
    checks: [19],
    edits: [
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: 'return stored === source.dtype ? { t: path } : { t: path, as: source.dtype };',
        replace: 'return { t: path };',
      },
    ],
    tests: [{ file: serialization, title: '[B19]' }],
  },
  {
    name: 'an element that is no tensor is dropped',
    checks: [21],
    edits: [
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: '    const elements = layer.elements.map((element, k)',
        replace: "    const elements = layer.elements.filter((element) => typeof element !== 'number').map((element, k)",
      },
    ],
    tests: [{ file: serialization, title: '[B21]' }],
  },
  {
    name: 'a tensor without elements is float32',
    checks: [22],
    edits: [
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: '    const stored = storedDtype(source.dtype);',
        replace: "    const stored = source.byteLength === 0 ? 'F32' : storedDtype(source.dtype);",
      },
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: 'return stored === source.dtype ? { t: path } : { t: path, as: source.dtype };',
        replace: "return stored === source.dtype || stored === 'F32' ? { t: path } : { t: path, as: source.dtype };",
      },
    ],
    tests: [{ file: serialization, title: '[B22]' }],
  },
  {
    name: 'nested states are flattened',
    checks: [23],
    edits: [
      {
        file: 'src/shared/blocks/layer-tree.ts',
        find: '    const elements = layer.elements.map((element, k)',
        replace: '    const elements = (layer.elements as StateElement[]).flat().map((element, k)',
      },
    ],
    tests: [{ file: serialization, title: '[B23]' }],
  },
  {
    name: 'the rows of a block begin a block length before its end',
    checks: [25],
    edits: [
      {
        file: 'src/engine-thread/boundary/compaction.ts',
        find: 'const previous = Math.floor((tokenCount - 1) / blockSize) * blockSize;',
        replace: 'const previous = Math.max(0, tokenCount - blockSize);',
      },
    ],
    tests: [{ file: compaction, title: '[B25] of a pool' }],
  },
  {
    name: 'a pool of another length is cut all the same',
    checks: [26],
    edits: [
      {
        file: 'src/engine-thread/boundary/compaction.ts',
        find: '|| whole.shape[ROW_AXIS] !== range[1]) return layer;',
        replace: '|| whole.shape[ROW_AXIS]! < range[1]) return layer;',
      },
    ],
    tests: [{ file: compaction, title: '[B26]' }],
  },
  {
    name: 'the family’s compaction comes first',
    checks: [28],
    edits: [
      {
        file: 'src/engine-thread/boundary/prepare.ts',
        find: '  const compacted = compactPools(layers, point);\n  return family === null ? compacted : family(compacted, point);',
        replace: '  return compactPools(family === null ? layers : family(layers, point), point);',
      },
    ],
    tests: [{ file: compaction, title: '[B28] with a block size' }],
  },
  {
    name: 'element 0 is encoded too',
    checks: [30],
    edits: [
      {
        file: 'src/engine-thread/boundary/state-codec/encode.ts',
        find: 'if (i !== RECURRENT_ELEMENT || element === null',
        replace: 'if (i > RECURRENT_ELEMENT || element === null',
      },
    ],
    tests: [{ file: codec, title: '[B30]' }],
  },
  {
    name: 'a value that is not finite is encoded',
    checks: [31],
    edits: [
      {
        file: 'src/engine-thread/boundary/state-codec/encode.ts',
        find: 'if (problem !== null) throw unencodable',
        replace: 'if (problem !== null && rows < 0) throw unencodable',
      },
    ],
    tests: [{ file: codec, title: '[B31]' }],
  },
  {
    name: 'a width that cannot be rotated is not counted',
    checks: [32],
    edits: [
      { file: 'src/engine-thread/boundary/state-codec/encode.ts', find: '        this.#onFallback(width);\n', replace: '' },
      {
        file: 'src/engine-thread/boundary/state-codec/encode.ts',
        find: '    this.#onFallback = onFallback;',
        replace: '    this.#onFallback = onFallback;\n    void this.#onFallback;',
      },
    ],
    tests: [{ file: codec, title: '[B32]' }],
  },
  {
    name: 'the source type of an encoding is believed',
    checks: [33],
    edits: [{ file: 'src/engine-thread/boundary/state-codec/decode.ts', find: 'if (source !== SOURCE_DTYPE) throw', replace: "if (source === '') throw" }],
    tests: [{ file: codec, title: '[B33]' }],
  },
  {
    name: 'the offsets of parts are not looked at',
    checks: [34],
    edits: [{ file: 'src/engine-thread/boundary/prepare.ts', find: 'of [layer, ...(layer.parts ?? [])]) {', replace: 'of [layer]) {' }],
    tests: [{ file: serialization, title: '[B34]' }],
  },
];
