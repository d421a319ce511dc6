/**
 * A disk that is slow or stands still, by the file layer's hooks: the writer's thread blocks in the operation as it would in
 * the system call, and hears nothing meanwhile. Loaded by the writer (`default`); steered from another thread by words.
 */
const OPERATIONS = ['pwrite', 'fsync'];
/** For each operation: how long each call blocks, and how many calls still do. */
const WORDS = 2;
const HEALED = OPERATIONS.length * WORDS;

export function createDisk() {
  const words = new Int32Array(new SharedArrayBuffer((HEALED + 1) * 4));
  return {
    words,
    /** The next `times` such operations block for `ms` each. */
    slow(operation, ms, times = 0x7fffffff) {
      const at = OPERATIONS.indexOf(operation) * WORDS;
      Atomics.store(words, HEALED, 0);
      Atomics.store(words, at, ms);
      Atomics.store(words, at + 1, times);
    },
    /** Nothing blocks any more; what is blocked goes on. */
    heal() {
      for (let i = 0; i < OPERATIONS.length; i++) Atomics.store(words, i * WORDS + 1, 0);
      Atomics.store(words, HEALED, 1);
      Atomics.notify(words, HEALED);
    },
  };
}

export default function makeHooks(words) {
  return {
    before(operation) {
      const at = OPERATIONS.indexOf(operation) * WORDS;
      if (at < 0 || Atomics.load(words, at + 1) <= 0) return;
      Atomics.sub(words, at + 1, 1);
      Atomics.wait(words, HEALED, 0, Atomics.load(words, at));
    },
  };
}
