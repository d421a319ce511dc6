/** Mutants for conformance I: store job, buffer lock, streams; and the locks themselves. See scripts/mutants.mjs. */
const bufferLock = 'test/boundary/buffer-lock.test.ts';
const jobs = 'test/blocks/store-jobs.test.ts';

export default [
  {
    name: 'a queued unit rings no bell',
    checks: [93],
    edits: [
      {
        file: 'src/shared/session/units.ts',
        find: "    if (outcome === 'queued') session.storeBell.ring();\n    else place.release();",
        replace: "    if (outcome !== 'queued') place.release();",
      },
    ],
    tests: [{ file: jobs, title: '[I93][I98] two units' }],
  },
  {
    name: 'the store worker sleeps on a bell that it read too late',
    checks: [93],
    edits: [
      {
        file: 'src/store-worker/drain-loop.ts',
        find: "      control.bell.wait(seen, turn === 'waiting'",
        replace: "      control.bell.wait(seen < 0 ? seen : control.bell.seen(), turn === 'waiting'",
      },
      {
        file: 'src/store-worker/drain-loop.ts',
        find: '      self.idle();\n',
        replace: '      self.idle();\n      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100);\n',
      },
    ],
    tests: [
      { file: jobs, title: '[I93] two engines' },
      { file: 'test/blocks/threads.test.ts', title: '[D58][F70][I93]' },
    ],
  },
  {
    name: 'a boundary is handed over without being evaluated',
    checks: [94],
    edits: [
      {
        file: 'src/engine-thread/boundary/recorder.ts',
        find: '      if (lazy.length > 0) evaluate(lazy);\n    } catch (error) {\n      release(draft);\n      return this.#failed(error);',
        replace: '      if (lazy.length < 0) evaluate(lazy);\n    } catch (error) {\n      release(draft);\n      return this.#failed(error);',
      },
    ],
    tests: [{ file: 'test/boundary/recorder.test.ts', title: '[I94] one evaluation' }],
  },
  {
    name: 'live state of another place is stored under a boundary’s count',
    checks: [95],
    edits: [
      {
        file: 'src/engine-thread/boundary/recorder.ts',
        find: 'stateWanted && cache.offset !== end))) return null;',
        replace: 'stateWanted && cache.offset < end))) return null;',
      },
      {
        file: 'src/engine-thread/cache/registry.ts',
        find: '  requireOffsets(caches, tokenCount);\n  return capturePart(caches, false,',
        replace: '  return capturePart(caches, false,',
      },
      { file: 'src/engine-thread/cache/arrays-cache.ts', find: 'if (to !== this.offset || ', replace: 'if (to > this.offset || ' },
    ],
    tests: [{ file: 'test/boundary/recorder.test.ts', title: '[I95] without a capture' }],
  },
  {
    name: 'a clear does not take the lock',
    checks: [96],
    edits: [
      {
        file: 'src/engine-thread/mlx/metal-sync.ts',
        find: "const had = bufferAccess.acquire(CLEAR_LOCK_TIMEOUT_MS, 'syncAndClearCache');",
        replace: 'const had = bufferAccess !== null;',
      },
      { file: 'src/engine-thread/mlx/metal-sync.ts', find: '    bufferAccess.release();\n', replace: '    void bufferAccess;\n' },
    ],
    tests: [{ file: bufferLock, title: '[I96]' }],
  },
  {
    name: 'a reentrant lock is free at its first release',
    checks: [96],
    edits: [
      {
        file: 'src/shared/sync/reentrant.ts',
        find: 'if (this.isHeldByMe() && this.words[this.at + DEPTH]! > 1) {',
        replace: 'if (this.isHeldByMe() && this.words[this.at + DEPTH]! > 2) {',
      },
    ],
    tests: [{ file: bufferLock, title: '[I96]' }],
  },
  {
    name: 'two threads hold a lock at the same time',
    checks: [96],
    edits: [
      {
        file: 'src/shared/sync/lock-word.ts',
        find: '      const patience = start + FAIR_AFTER_MS - time;\n',
        replace:
          "      const patience = start + FAIR_AFTER_MS - time;\n      if (patience <= 0) {\n        Atomics.store(words, at + STATE, (me << 1) | CONTENDED);\n        outcome = 'acquired';\n        break;\n      }\n",
      },
    ],
    tests: [{ file: 'test/sync/contention.test.ts', title: 'nobody starves' }],
  },
  {
    name: 'whoever has waited longest does not go first',
    checks: [97],
    edits: [
      {
        file: 'src/shared/sync/lock-word.ts',
        find: '        Atomics.compareExchange(words, at + PRIORITY, 0, me);\n        continue;',
        replace: '        waitForLock(words, at + STATE, contended, Math.min(end - time, SLICE_MS));\n        continue;',
      },
    ],
    tests: [{ file: bufferLock, title: '[I97] whoever has waited' }],
  },
  {
    name: 'a second place takes bufferAccess',
    checks: [97],
    edits: [
      {
        file: 'src/engine-thread/engine-core.ts',
        find: '    const clears = new CacheClears(',
        replace: "    if (bufferAccess.acquire(0, 'load')) bufferAccess.release();\n    const clears = new CacheClears(",
      },
    ],
    tests: [{ file: bufferLock, title: '[I97] the product takes it' }],
  },
  {
    name: 'a clear waits for the lock for a minute',
    checks: [98],
    edits: [{ file: 'src/engine-thread/mlx/metal-sync.ts', find: 'CLEAR_LOCK_TIMEOUT_MS = 1_000', replace: 'CLEAR_LOCK_TIMEOUT_MS = 60_000' }],
    tests: [{ file: bufferLock, title: '[I98] against a naive job' }],
  },
  {
    name: 'waits for a stream are no edges of a cycle',
    checks: [98],
    edits: [
      {
        file: 'src/shared/sync/diagnose.ts',
        find: 'if (thread.dependsOn === null || thread.dependsOn === from) return null;',
        replace: "if (thread.dependsOn === null || thread.activity === 'stream') return null;",
      },
    ],
    tests: [{ file: bufferLock, title: '[I98] the naive order' }],
  },
  {
    name: 'a look-up takes all three locks',
    checks: [99],
    edits: [
      { file: 'src/engine-thread/boundary/snapshot-store.ts', find: "this.session.underRegistry('has',", replace: "this.session.settleAll('has'," },
      {
        file: 'src/engine-thread/boundary/snapshot-store.ts',
        find: '[FILE_STATE.pending, FILE_STATE.file]));\n    return this.session.guarded(look',
        replace: '[FILE_STATE.pending, FILE_STATE.file]) === true);\n    return this.session.guarded(look',
      },
    ],
    tests: [{ file: 'test/boundary/lock-sets.test.ts', title: '[I99] save, load' }],
  },
  {
    name: 'locks may be taken in falling rank',
    checks: [99],
    edits: [{ file: 'src/shared/sync/lock.ts', find: 'if (held.rank < spec.rank && held.rank <=', replace: 'if (held.rank !== spec.rank || held.rank <=' }],
    tests: [{ file: 'test/sync/ranks.test.ts', title: 'held,' }],
  },
  {
    name: 'every error of a drain is passed over',
    checks: [100],
    edits: [
      {
        file: 'src/engine-thread/mlx/metal-sync.ts',
        find: '    if (!(error instanceof StreamAffinityError)) throw error;',
        replace: '    if (!(error instanceof Error) && StreamAffinityError.length < 0) throw error;',
      },
    ],
    tests: [{ file: 'test/native/streams-belong-to-threads.test.ts', title: '[I100]' }],
  },
  {
    name: 'a capture is built on a stream of its own',
    checks: [36, 101, 102],
    edits: [
      {
        file: 'src/engine-thread/cache/arrays-cache.ts',
        find: 't === null ? null : mx.contiguous(t, s)',
        replace: "t === null ? null : mx.contiguous(t, s < 0 ? s : mx.newStream('cpu'))",
      },
    ],
    tests: [{ file: 'test/engine/prefixes-stay-on-one-stream.test.ts', title: '[I101][I102]' }],
  },
  {
    name: 'fast fences are not warned of',
    checks: [101],
    edits: [{ file: 'src/host/create-engine.ts', find: "if (fences !== '' && fences !== '0') host.emit", replace: "if (fences === 'never') host.emit" }],
    tests: [{ file: 'test/engine/prefixes-stay-on-one-stream.test.ts', title: '[I101] also with' }],
  },
  {
    name: 'diagnose() does not say what a thread waits for',
    checks: [103],
    edits: [{ file: 'src/shared/sync/lock.ts', find: "      self.beginWait('lock', this.id, this.nameId, siteId);\n", replace: '' }],
    tests: [{ file: jobs, title: '[I103] tells' }],
  },
  {
    name: 'diagnose() takes the owner of a lock for its last one',
    checks: [103],
    edits: [{ file: 'src/shared/sync/lock-table.ts', find: '    held: token !== 0,', replace: '    held: true,' }],
    tests: [{ file: jobs, title: '[I103] tells' }],
  },
  {
    name: 'a lock whose owner died is waited for to the end',
    checks: [103],
    edits: [
      { file: 'src/shared/sync/lock-word.ts', find: '    if (lives.isLost(state >>> 1)) {', replace: '    if (state < 0 && lives.isLost(state >>> 1)) {' },
    ],
    tests: [{ file: 'test/sync/owner-death.test.ts', title: 'with death words of the native core the owner ends by terminate' }],
  },
];
