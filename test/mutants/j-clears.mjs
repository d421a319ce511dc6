/** Mutants for conformance J: clears of the allocator's cache. See scripts/mutants.mjs. */
const sync = 'src/engine-thread/mlx/metal-sync.ts';
const clears = 'src/engine-thread/cache-clears.ts';
const core = 'src/engine-thread/engine-core.ts';
const model = 'src/engine-thread/engine-model.ts';
const sequence = 'src/engine-thread/sequence.ts';
const drains = 'test/clears/a-clear-drains-first.test.ts';
const due = 'test/clears/when-a-clear-is-due.test.ts';
const exits = 'test/clears/each-exit-clears.test.ts';
const freed = 'test/clears/freed-memory-still-charged.test.ts';

const mutant = (name, checks, file, find, replace, tests) => ({ name, checks, edits: [{ file, find, replace }], tests });

export default [
  mutant(
    'a clear takes the lock before it drains',
    [104],
    sync,
    '  native.synchronize(stream);\n  if (!acquire(bufferAccess)) {',
    '  if (!acquire(bufferAccess)) {',
    [{ file: drains, title: '[J104] drain, lock' }],
  ),
  mutant(
    'a clear leaves out the other streams of its thread',
    [104, 106, 108],
    sync,
    'if (other !== stream && !defaults.includes(other)) safeSyncStream(other);',
    'if (other !== stream && defaults.includes(other)) safeSyncStream(other);',
    [{ file: drains, title: '[J106][J108] nothing of the other' }],
  ),
  mutant(
    'a clear drains the default stream before the others',
    [104],
    sync,
    '    for (const other of native.liveStreams()) if',
    '    for (const own of defaults) native.synchronize(own);\n    for (const other of native.liveStreams()) if',
    [{ file: drains, title: '[J104] drain, lock' }],
  ),
  mutant('the wait for the lock is not measured', [104], sync, '  counts.waitedMs += waited;\n', '', [{ file: drains, title: '[J104] the wait' }]),
  mutant(
    'a clear drains the thread’s default streams only',
    [106, 107],
    sync,
    '  native.synchronize(stream);\n  if (!acquire',
    '  for (const own of native.defaultStreams()) native.synchronize(own);\n  if (!acquire',
    [{ file: drains, title: '[J104] drain, lock' }],
  ),
  mutant(
    'a clear drains no stream but the default one',
    [106],
    sync,
    '    native.synchronize(stream);\n    const defaults = native.defaultStreams();\n    for (const other of native.liveStreams()) if (other !== stream && !defaults.includes(other)) safeSyncStream(other);',
    '    stream = native.defaultStreams()[0]!;\n    const defaults = native.defaultStreams();',
    [{ file: drains, title: '[J106][J108] nothing of the other' }],
  ),
  {
    name: 'the engine clears with a stream made for it',
    checks: [105, 107],
    edits: [
      {
        file: core,
        find: 'const cleared = syncAndClearCache(stream, bufferAccess);',
        replace: 'const cleared = syncAndClearCache(newStream(device), bufferAccess);',
      },
      { file: core, find: 'import { deviceInfo, foreignStreamOps }', replace: 'import { deviceInfo, foreignStreamOps, newStream }' },
    ],
    tests: [{ file: exits, title: '[J107][J109] prefill: ' }],
  },
  mutant(
    'a second model’s operations count as foreign',
    [105, 108],
    'src/engine-thread/mlx/streams.ts',
    'native.newModelStream(device)',
    'native.newStream(device)',
    [{ file: drains, title: '[J105][J108]' }],
  ),
  mutant(
    'the engine’s stream is not the thread’s default',
    [105],
    'src/engine-thread/mlx/streams.ts',
    '  native.setDefaultStream(stream);\n  native',
    '  native',
    [{ file: drains, title: '[J105] the engine makes' }],
  ),
  mutant(
    'no clear after a chunk of prefill',
    [107, 108],
    clears,
    'if (this.#prefilled >= this.#chunk) this.#prefilled = 0;',
    'if (this.#prefilled >= this.#chunk * 1e9) this.#prefilled = 0;',
    [{ file: due, title: '[J108] after each chunk' }],
  ),
  mutant(
    'no clear after an aborted prefill',
    [107],
    sequence,
    '    if (brokenOff) this.#clearNow();\n',
    '    if (brokenOff && this.#caches.length > 0) this.#clearNow();\n',
    [{ file: exits, title: '[J107][J109] prefill: ' }],
  ),
  mutant(
    'no clear after an error',
    [107],
    sequence,
    '    if (held && !isDeviceLost(error)) this.#clearNow();\n',
    '    if (held && isDeviceLost(error)) this.#clearNow();\n',
    [{ file: exits, title: '[J107][J109] prefill: ' }],
  ),
  mutant(
    'a long answer is never cleared',
    [108],
    clears,
    'if (this.#decodeSteps >= DECODE_STEPS_BETWEEN) this.#decodeSteps = 0;',
    'if (this.#decodeSteps >= DECODE_STEPS_BETWEEN * 1e9) this.#decodeSteps = 0;',
    [{ file: due, title: '[J108] every 512' }],
  ),
  {
    name: 'a second place clears the cache',
    checks: [109],
    edits: [
      { file: model, find: '    this.causal.release();', replace: '    this.causal.release();\n    mlx().clearCache();' },
      {
        file: model,
        find: "import { scope } from './mlx/scope.ts';",
        replace: "import { mlx } from './mlx/binding.ts';\nimport { scope } from './mlx/scope.ts';",
      },
    ],
    tests: [{ file: 'test/native/one-caller-of-the-clear.test.ts', title: '[J109] TypeScript' }],
  },
  mutant(
    'the clear after an answer comes at once',
    [110],
    clears,
    'this.#dueStep = this.#step + STEPS_AFTER_FINISH;',
    'this.#dueStep = this.#step + STEPS_AFTER_FINISH / 8;',
    [{ file: due, title: '[J110] not at once' }],
  ),
  mutant('a further finisher does not move the clear on', [110], clears, 'this.#dueStep = this.#step', 'this.#dueStep ??= this.#step', [
    { file: due, title: '[J110] a further one' },
  ]),
  mutant('another clear takes the place of the one that is due', [110], clears, 'this.#prefilled = 0;\n', 'this.#dueStep = this.#prefilled = 0;\n', [
    { file: due, title: '[J110] a clear for another reason' },
  ]),
  mutant(
    'an error of the default stream is passed over',
    [111],
    sync,
    'native.synchronize(own);',
    'try {\n      native.synchronize(own);\n    } catch {\n      continue;\n    }',
    [{ file: drains, title: '[J111]' }],
  ),
  mutant('what a broken-off prefill’s clear meets is not told', [111], 'src/shared/errors.ts', "error.code === 'DEVICE_LOST'", "error.code === 'ENGINE_DIED'", [
    { file: exits, title: '[J111]' },
  ]),
  mutant(
    'streams of a thread are cleared before they are drained',
    [112],
    sync,
    '  const errors: unknown[] = [];\n',
    '  const errors: unknown[] = [];\n  native.clearStreams();\n',
    [{ file: drains, title: '[J112] all its streams' }],
  ),
  mutant('the first stream that fails keeps the others alive', [112], sync, '      errors.push(error);', '      throw error;', [
    { file: drains, title: '[J112] also when' },
  ]),
  mutant('freed memory is forgotten at once', [113], 'src/engine-thread/mlx/unreleased.ts', 'UNRELEASED_WINDOW_MS = 10_000', 'UNRELEASED_WINDOW_MS = 100', [
    { file: freed, title: '[J113] adds several' },
  ]),
  mutant('a clear does not note what it gave back', [113], sync, 'if (before !== null) unreleased', 'if (before !== null && cached < 0) unreleased', [
    { file: freed, title: '[J113] a clear is noted' },
  ]),
];
