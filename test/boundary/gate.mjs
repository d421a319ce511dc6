/**
 * Faults for the file layer, steered from another thread through shared words: hold an operation before or after it happens,
 * let it fail with an errno a number of times, or shorten writes. Loaded by the writer and by actors (`default` makes the hooks);
 * the test itself uses `Gate`.
 */
export const OPERATIONS = ['mkdir', 'create', 'open', 'pwrite', 'pread', 'fsync', 'rename', 'unlink', 'rmdir', 'syncFolder', 'list', 'lstat'];
export const ERRNOS = ['', 'ENOSPC', 'EIO', 'EROFS', 'EACCES'];

const WORDS = 8;
const HOLD_BEFORE = 0;
const HOLD_AFTER = 1;
const ARRIVED = 2;
const FAIL_WITH = 3;
const FAIL_TIMES = 4;
const SHORTEN_TO = 5;
const COUNT = 6;
const HELD = 7;

/** Behind the operations' words: how many operations were traced, then their numbers. */
const TRACE = OPERATIONS.length * WORDS;
const TRACE_MAX = 4096;

/** A held thread goes on by itself after this long, so that a broken test ends. */
const HOLD_LIMIT_MS = Math.min(15_000, 2 * Number(process.env.TIDEMARK_PATIENCE_MS ?? 15_000));

const at = (operation, word) => OPERATIONS.indexOf(operation) * WORDS + word;

export class Gate {
  constructor(buffer = new SharedArrayBuffer((TRACE + 1 + TRACE_MAX) * 4)) {
    this.buffer = buffer;
    this.words = new Int32Array(buffer);
  }

  /** The next such operation stops before (or after) it happens. */
  hold(operation, when = 'before') {
    Atomics.store(this.words, at(operation, ARRIVED), 0);
    Atomics.store(this.words, at(operation, when === 'before' ? HOLD_BEFORE : HOLD_AFTER), 1);
  }

  release(operation) {
    for (const word of [HOLD_BEFORE, HOLD_AFTER]) {
      Atomics.store(this.words, at(operation, word), 0);
      Atomics.notify(this.words, at(operation, word));
    }
  }

  /** Settles when a thread has come to the hold. */
  async arrived(operation) {
    const end = performance.now() + HOLD_LIMIT_MS;
    while (Atomics.load(this.words, at(operation, ARRIVED)) === 0) {
      if (performance.now() > end) throw new Error(`nobody came to ${operation}`);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  fail(operation, errno, times = 1_000_000) {
    Atomics.store(this.words, at(operation, FAIL_WITH), ERRNOS.indexOf(errno));
    Atomics.store(this.words, at(operation, FAIL_TIMES), times);
  }

  heal(operation) {
    Atomics.store(this.words, at(operation, FAIL_TIMES), 0);
  }

  shorten(operation, bytes) {
    Atomics.store(this.words, at(operation, SHORTEN_TO), bytes);
  }

  /** Operations in the order in which they were done, since the last call. */
  takeTrace() {
    const count = Math.min(Atomics.exchange(this.words, TRACE, 0), TRACE_MAX);
    return Array.from(this.words.slice(TRACE + 1, TRACE + 1 + count), (number) => OPERATIONS[number]);
  }

  /** How often the operation was begun since the gate was made. */
  count(operation) {
    return Atomics.load(this.words, at(operation, COUNT));
  }
}

function wait(words, operation, word) {
  Atomics.add(words, at(operation, HELD), 1);
  Atomics.store(words, at(operation, ARRIVED), 1);
  Atomics.wait(words, at(operation, word), 1, HOLD_LIMIT_MS);
}

/** `data`: { gate: SharedArrayBuffer, match?: string } — only paths that contain `match` are touched. */
export default function hooks(data) {
  const words = new Int32Array(data.gate);
  const applies = (path) => data.match === undefined || path.includes(data.match);
  return {
    before(operation, path) {
      if (!applies(path)) return undefined;
      Atomics.add(words, at(operation, COUNT), 1);
      if (Atomics.load(words, at(operation, HOLD_BEFORE)) === 1) wait(words, operation, HOLD_BEFORE);
      if (Atomics.load(words, at(operation, FAIL_TIMES)) > 0 && Atomics.sub(words, at(operation, FAIL_TIMES), 1) > 0) {
        const code = ERRNOS[Atomics.load(words, at(operation, FAIL_WITH))];
        throw Object.assign(new Error(`${code}: injected, ${operation} '${path}'`), { code, syscall: operation, path });
      }
      const limit = Atomics.load(words, at(operation, SHORTEN_TO));
      return limit > 0 ? limit : undefined;
    },
    after(operation, path) {
      if (!applies(path)) return;
      const place = Atomics.add(words, TRACE, 1);
      if (place < TRACE_MAX) words[TRACE + 1 + place] = OPERATIONS.indexOf(operation);
      if (Atomics.load(words, at(operation, HOLD_AFTER)) === 1) wait(words, operation, HOLD_AFTER);
    },
  };
}
