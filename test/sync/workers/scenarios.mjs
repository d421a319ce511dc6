/**
 * What the threads of the lock tests do. Each scenario gets its lock objects, shared numbers and a way to tell the test.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { LockTable, now, ThreadTable, withLock } from '../../../dist/sync.js';

const { scenario, name, kind = 'other', threads, words, specs, numbers, native = true, ...args } = workerData;
if (!native) (await import('../../../dist/shared/sync/death-word.js')).useDeathWords(null);
const me = new ThreadTable(threads).enter(kind, name);
const table = new LockTable(new Int32Array(words), 0, specs);
const shared = new Int32Array(numbers);
const say = (message) => parentPort.postMessage(message);
const failure = (error) => ({ code: error.code, message: error.message, details: error.details });
/** Sleeps until the test sets a number. Bounded, so that a failed test leaves no thread behind. */
const until = (index, value, ms = 20_000) => {
  const end = now() + ms;
  while (Atomics.load(shared, index) !== value && now() < end) Atomics.wait(shared, index, Atomics.load(shared, index), 20);
};
const busy = (ms) => {
  const end = now() + ms;
  while (now() < end);
};

const scenarios = {
  /** Adds to an unprotected number under the lock, in finite rounds. */
  count() {
    const lock = table[args.reentrant ? 'reentrant' : 'mutex'](specs[0].name, me);
    const depth = args.depth ?? 1;
    Atomics.add(shared, 1, 1);
    Atomics.notify(shared, 1);
    until(1, args.parties);
    for (let round = 0; round < args.rounds; round++) {
      for (let d = 0; d < depth; d++) if (!lock.acquire(20_000, 'count')) throw new Error('not had');
      shared[0] += 1;
      if (args.holdMs) busy(args.holdMs);
      shared[2 + args.index] += 1;
      for (let d = 0; d < depth; d++) lock.release();
    }
    return { others: args.others.map((i) => Atomics.load(shared, 2 + i)) };
  },
  /** Takes the lock, says so, and keeps it until told otherwise. */
  hold() {
    const lock = table[args.reentrant ? 'reentrant' : 'mutex'](args.lock ?? specs[0].name, me);
    lock.acquire(10_000, args.site ?? 'hold');
    say('held');
    if (args.end === 'leave') return me.leave();
    until(0, 1);
    if (args.end === 'throw') throw new Error('died on purpose');
    if (args.end === 'exit') process.exit(1);
    lock.release();
    return 'released';
  },
  acquire() {
    const lock = table[args.reentrant ? 'reentrant' : 'mutex'](args.lock ?? specs[0].name, me);
    const begin = now();
    try {
      const had = lock.acquire(args.timeoutMs, args.site ?? 'acquire');
      const waitedMs = now() - begin;
      if (had) lock.release();
      return { had, waitedMs };
    } catch (error) {
      return { ...failure(error), waitedMs: now() - begin };
    }
  },
  withLock() {
    try {
      return withLock(table.mutex(specs[0].name, me), args.timeoutMs, 'withLock', () => 'done');
    } catch (error) {
      return failure(error);
    }
  },
  /** Holds one lock and waits for another, or for a stream of another thread. */
  entangle() {
    const first = table.mutex(args.first, me);
    first.acquire(10_000, `${name} first`);
    say('held');
    until(0, 1);
    if (args.stream !== undefined) {
      me.activity('stream', 'stream 3', 2_000, args.stream);
      say('waits');
      until(1, 1);
      me.idle();
    } else {
      say('waits');
      const second = table.mutex(args.second, me);
      me.strict = false; // the order is wrong on purpose
      if (second.acquire(args.timeoutMs, `${name} second`)) second.release();
    }
    first.release();
    return 'untangled';
  },
  waitUntil() {
    const lock = table.mutex(specs[0].name, me);
    const condition = table.condition(specs[0].conditions[0], lock);
    lock.acquire(10_000, 'wait');
    try {
      const ok = condition.waitUntil(() => Atomics.load(shared, 2) >= args.atLeast, args.timeoutMs, 'waitUntil');
      return { ok, held: lock.isHeldByMe() };
    } catch (error) {
      return { ...failure(error), held: lock.isHeldByMe() };
    } finally {
      if (lock.isHeldByMe()) lock.release();
    }
  },
  /** Raises the number that waiters test, under the lock, and broadcasts. */
  produce() {
    const lock = table.mutex(specs[0].name, me);
    const condition = table.condition(specs[0].conditions[0], lock);
    for (let i = 0; i < args.rounds; i++) {
      withLock(lock, 10_000, 'produce', () => {
        shared[2] += 1;
      });
      condition.broadcast();
    }
    return 'produced';
  },
  consume() {
    const lock = table.mutex(specs[0].name, me);
    const condition = table.condition(specs[0].conditions[0], lock);
    let taken = 0;
    for (;;) {
      const more = withLock(lock, 10_000, 'consume', () => {
        if (!condition.waitUntil(() => shared[2] > 0 || shared[3] >= args.total, 10_000)) throw new Error('nothing came');
        if (shared[2] === 0) return false;
        shared[2] -= 1;
        shared[3] += 1;
        taken++;
        return true;
      });
      // The last one tells the others that nothing comes any more.
      if (Atomics.load(shared, 3) >= args.total) condition.broadcast();
      if (!more) return taken;
    }
  },
};

const result = await scenarios[scenario]();
say({ result });
