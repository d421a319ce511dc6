/**
 * What the explorer runs: small programs over the product's locks, each with what must hold at every moment and at the end.
 */

import type { Scenario, Step } from './scheduler.ts';
import type { SyncWorld } from './world.ts';
import { fakeThread } from './world.ts';

const LOCK = { name: 'lock', rank: 1 };
const MUTEX_AT = 0;
const CONDITION_AT = 16;
const DATA_AT = 32;

export interface MutexOptions {
  readonly threads: number;
  /** How often each takes the lock; a list gives each its own number. */
  readonly rounds: number | readonly number[];
  /** Timeout of each acquire, one per thread. Default: none. */
  readonly timeouts?: readonly number[];
  readonly kind?: 'TimedMutex' | 'ReentrantLock';
  /** Depth to which a reentrant lock is taken. */
  readonly depth?: number;
  readonly mortal?: readonly number[];
  readonly onOwnerDeath?: 'abandon' | 'takeover';
  /** How often others may take the lock while one has priority: an upper bound to how long anybody waits. */
  readonly overtakes?: number;
  /** Time passes once, by so much, at any moment: deadlines then fall between any two steps. */
  readonly passesMs?: number;
}

/** Threads that take the lock, are alone, and let go. */
export function mutexScenario({ world, sync }: SyncWorld, options: MutexOptions): Scenario {
  const { threads, kind = 'TimedMutex', depth = 1 } = options;
  const rounds = Array.from({ length: threads }, (_, id) => (typeof options.rounds === 'number' ? options.rounds : options.rounds[id]!));
  const total = rounds.reduce((a, b) => a + b);
  const words = new Int32Array(16);
  const dead = new Set<number>();
  const inside = new Set<number>();
  const failures: string[] = [];
  let got = 0;
  // Whose turn it is, as the priority word says, and how often others were faster since.
  let turn = 0;
  let overtaken = 0;
  const watchTurn = () => {
    if (words[1] !== turn) overtaken = 0;
    turn = words[1]!;
    return options.overtakes !== undefined && overtaken > options.overtakes
      ? `thread ${turn - 1} had priority and was overtaken ${overtaken} times`
      : undefined;
  };
  const program = (id: number) =>
    function* (): Step {
      const spec = options.onOwnerDeath === undefined ? LOCK : { ...LOCK, onOwnerDeath: options.onOwnerDeath };
      const lock = new sync[kind](words, MUTEX_AT, spec, fakeThread(world, id, dead));
      for (let round = 0; round < rounds[id]!; round++) {
        try {
          if (!(yield* lock.acquire(options.timeouts?.[id] ?? Number.POSITIVE_INFINITY, 'site'))) continue;
        } catch (error) {
          if ((error as { code?: string }).code !== 'LOCK_OWNER_DIED') throw error;
          if (dead.size === 0) failures.push('LOCK_OWNER_DIED although nobody died');
          return undefined;
        }
        for (let d = 1; d < depth; d++) if (!(yield* lock.acquire(0, 'again'))) failures.push('a reentrant lock refused its owner');
        inside.add(id);
        got++;
        if (turn !== 0 && turn !== id + 1) overtaken++;
        yield;
        inside.delete(id);
        for (let d = 0; d < depth; d++) yield* lock.release();
      }
      return undefined;
    };
  const { passesMs } = options;
  function* time(): Step {
    yield;
    world.clock += passesMs!;
    return undefined;
  }
  return {
    words,
    threads: [...Array.from({ length: threads }, (_, id) => program(id)), ...(passesMs === undefined ? [] : [time])],
    ...(options.mortal === undefined ? {} : { mortal: options.mortal }),
    onKill: (id) => {
      dead.add(id);
      inside.delete(id);
    },
    check: () => watchTurn() ?? (inside.size > 1 ? `two inside: ${[...inside].join(', ')}` : failures[0]),
    final: () => {
      if (dead.size > 0) return undefined;
      if (options.timeouts === undefined && got !== total) return `${got} of ${total} rounds`;
      return words[0] === 0 && words[1] === 0 ? undefined : `lock not free at the end: ${words[0]}, priority ${words[1]}`;
    },
    extra: () => [...inside].reduce((sum, id) => sum | (1 << id), 0) + dead.size * 256 + overtaken * 1024,
  };
}

export interface QueueOptions {
  readonly consumers: number;
  readonly items: number;
  /** A thread without the lock that sets a word and broadcasts. The consumers end on it. */
  readonly aborter?: boolean;
  readonly consumerTimeout?: number;
  /** Items the producer makes. Default: all. */
  readonly produced?: number;
  /** One broadcast for all items. */
  readonly batch?: boolean;
}

/** One producer, several consumers and, if asked, an aborter that holds no lock. */
export function conditionScenario({ world, sync }: SyncWorld, options: QueueOptions): Scenario {
  const { consumers, items, consumerTimeout = Number.POSITIVE_INFINITY, produced = items, batch = false } = options;
  const words = new Int32Array(DATA_AT + 3);
  const COUNT = DATA_AT;
  const ABORT = DATA_AT + 1;
  let taken = 0;
  let aborted = 0;
  let late = 0;
  const make = (id: number) => {
    const mutex = new sync.TimedMutex(words, MUTEX_AT, LOCK, fakeThread(world, id));
    return { mutex, condition: new sync.Condition(words, CONDITION_AT, mutex, 'condition') };
  };
  function* producer(): Step {
    const { mutex, condition } = make(0);
    for (let i = 0; i < produced; i += batch ? produced : 1) {
      yield* mutex.acquire(Number.POSITIVE_INFINITY, 'produce');
      words[COUNT]! += batch ? produced : 1;
      yield* mutex.release();
      yield* condition.broadcast();
    }
    return undefined;
  }
  function* aborter(): Step {
    const { condition } = make(9);
    yield;
    words[ABORT] = 1;
    yield* condition.broadcast();
    return undefined;
  }
  const share = (c: number) => Math.floor(items / consumers) + (c < items % consumers ? 1 : 0);
  const consumer = (c: number) =>
    function* (): Step {
      const { mutex, condition } = make(c + 1);
      for (let i = 0; i < share(c); i++) {
        yield* mutex.acquire(Number.POSITIVE_INFINITY, 'consume');
        function* ready(): Generator<undefined, boolean, undefined> {
          // The abort word is written without the lock: reading it is a point where others may run.
          return words[COUNT]! > 0 || (yield* world.operations.load(words, ABORT)) === 1;
        }
        const ok: boolean = yield* condition.waitUntil(ready, consumerTimeout);
        if (ok && words[COUNT]! > 0) {
          words[COUNT]!--;
          taken++;
        } else if ((yield* world.operations.load(words, ABORT)) === 1) aborted++;
        else late++;
        yield* mutex.release();
      }
      return undefined;
    };
  return {
    words,
    threads: [producer, ...Array.from({ length: consumers }, (_, c) => consumer(c)), ...(options.aborter ? [aborter] : [])],
    check: () => (words[COUNT]! < 0 ? 'taken more than produced' : undefined),
    final: () => {
      if (taken + aborted + late !== items) return `${taken} taken, ${aborted} aborted, ${late} late of ${items}`;
      if (!options.aborter && late > 0 && consumerTimeout === Number.POSITIVE_INFINITY) return 'a consumer without deadline gave up';
      return words[0] === 0 && words[1] === 0 ? undefined : 'lock not free at the end';
    },
    extra: () => taken * 64 + aborted * 8 + late,
  };
}

/** One producer for each ring and one consumer that sleeps on its bell; all arrives, once, in order. A full ring is waited for. */
export function ringScenario({ sync }: SyncWorld, options: { capacity: number; items: number; rings?: number }): Scenario {
  const { capacity, items, rings = 1 } = options;
  const size = sync.DescriptorRing.wordsFor(capacity);
  const SPACE = 1; // bells of the producers
  const RINGS = 1 + rings;
  const words = new Int32Array(RINGS + rings * size);
  const seen: number[][] = Array.from({ length: rings }, () => []);
  const failures: string[] = [];
  const producer = (r: number) =>
    function* (): Step {
      const bell = new sync.Doorbell(words, 0);
      const space = new sync.Doorbell(words, SPACE + r);
      const ring = new sync.DescriptorRing(words, RINGS + r * size, capacity, bell);
      for (let i = 1; i <= items; ) {
        const before: number = yield* space.seen();
        if (yield* ring.push(i, i * 10, i * 100, i * 1000)) i++;
        else yield* space.wait(before);
      }
      return undefined;
    };
  function* consumer(): Step {
    const bell = new sync.Doorbell(words, 0);
    const all = Array.from({ length: rings }, (_, r) => new sync.DescriptorRing(words, RINGS + r * size, capacity));
    while (seen.some((s) => s.length < items)) {
      const before: number = yield* bell.seen();
      let found = false;
      for (const [r, ring] of all.entries()) {
        const got: readonly number[] | null = yield* ring.pop();
        if (got === null) continue;
        found = true;
        const [a, b, c, d] = got;
        if (a !== seen[r]!.length + 1 || b !== a * 10 || c !== a * 100 || d !== a * 1000) failures.push(`got ${got} as item ${seen[r]!.length + 1}`);
        seen[r]!.push(a!);
        yield* new sync.Doorbell(words, SPACE + r).ring();
      }
      if (!found) yield* bell.wait(before);
    }
    return undefined;
  }
  return {
    words,
    threads: [...Array.from({ length: rings }, (_, r) => producer(r)), consumer],
    check: () => failures[0],
    final: () => (seen.every((s) => s.length === items) ? undefined : 'not everything arrived'),
    extra: () => seen.reduce((sum, s) => sum * 16 + s.length, 0),
  };
}
