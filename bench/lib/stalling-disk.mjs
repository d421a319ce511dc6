/**
 * A disk that stands still when told to: file hooks for snapshot writer and store worker, which hold each write and sync
 * inside the operation. Works without rights and on any file system.
 *
 * Words: 0 = the disk stands still, 1 = operations held so far, 2 = the longest hold in ms.
 */
const HELD = new Set(['pwrite', 'fsync', 'syncFolder', 'rename']);

/** The hooks, made on the thread whose operations are held. */
export default function hooks({ words }) {
  const state = new Int32Array(words);
  return {
    before(operation) {
      if (!HELD.has(operation) || Atomics.load(state, 0) === 0) return;
      const begin = performance.now();
      Atomics.add(state, 1, 1);
      while (Atomics.load(state, 0) === 1) Atomics.wait(state, 0, 1, 1_000);
      const ms = Math.round(performance.now() - begin);
      if (ms > Atomics.load(state, 2)) Atomics.store(state, 2, ms);
    },
  };
}

/** Main's side. `tuning` goes to the hub of the cache folder. */
export class StallingDisk {
  #words = new Int32Array(new SharedArrayBuffer(12));
  #timer = null;
  #thawed = Promise.resolve();

  get tuning() {
    const faults = { module: import.meta.url, data: { words: this.#words.buffer } };
    return { writerInit: { faults }, storeInit: { faults } };
  }

  /** Stands still from now on for `ms`. */
  freeze(ms) {
    Atomics.store(this.#words, 1, 0);
    Atomics.store(this.#words, 2, 0);
    Atomics.store(this.#words, 0, 1);
    this.#thawed = new Promise((resolve) => {
      this.#timer = setTimeout(() => {
        this.thaw();
        resolve();
      }, ms);
    });
  }

  thaw() {
    clearTimeout(this.#timer);
    Atomics.store(this.#words, 0, 0);
    Atomics.notify(this.#words, 0);
  }

  /** After the stall is over and what it held has gone on: how much that was. */
  async report() {
    await this.#thawed;
    return { operations: Atomics.load(this.#words, 1), longestMs: Atomics.load(this.#words, 2) };
  }
}
