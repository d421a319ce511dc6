/**
 * A disk that stands still when told to: file hooks for snapshot writer and store worker, which hold each write and sync
 * inside the operation. Works without rights and on any file system.
 *
 * Words: 0 = the disk stands still, 1 = operations held so far, 2 = the longest hold in ms, 3 = operations that have gone on.
 */
import { setTimeout as sleep } from 'node:timers/promises';

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
      Atomics.add(state, 3, 1);
    },
  };
}

/** Main's side. `tuning` goes to the hub of the cache folder. */
export class StallingDisk {
  #words = new Int32Array(new SharedArrayBuffer(16));
  #timer = null;
  #thawed = Promise.resolve();

  get tuning() {
    const faults = { module: import.meta.url, data: { words: this.#words.buffer } };
    return { writerInit: { faults }, storeInit: { faults } };
  }

  /** Stands still from now on for `ms`. */
  freeze(ms) {
    for (const word of [1, 2, 3]) Atomics.store(this.#words, word, 0);
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
    const held = () => Atomics.load(this.#words, 1) - Atomics.load(this.#words, 3);
    for (const end = performance.now() + 5_000; held() > 0 && performance.now() < end; ) await sleep(1);
    return { operations: Atomics.load(this.#words, 1), longestMs: Atomics.load(this.#words, 2) };
  }
}
