/**
 * Runs generator threads step by step and tries every schedule, up to a number of preemptions.
 *
 * A step is one Atomics operation and what follows it up to the next. Time is virtual: it moves only when the scheduler
 * chooses to let a sleeping thread's timeout pass. Choosing another thread while the last one could go on, letting a timeout
 * pass while somebody could run, and killing a thread cost one preemption each; everything else is free.
 *
 * Search is stateless: each schedule runs from the start. A state (shared words, each thread's history of results, sleepers
 * in order, clock) that was reached before with at least as many preemptions left is not explored again. The histories are
 * 32-bit hashes; a collision could hide a state, which is accepted.
 */
export type Step = Generator<undefined, unknown, undefined>;

export interface Thread {
  readonly id: number;
  readonly steps: Step;
  state: 'ready' | 'asleep' | 'done' | 'killed';
  /** Word slept on, and until when. */
  word: number;
  deadline: number;
  wake: 'ok' | 'timed-out';
  history: number;
  taken: number;
}

export interface Scenario {
  readonly words: Int32Array;
  readonly threads: readonly (() => Step)[];
  /** The words that decide how the run goes on. Default: all. */
  readonly watched?: Int32Array;
  /** After each step; a text is a violation. */
  readonly check?: () => string | undefined;
  /** `check` looks at nothing but the state: a step that was made before needs no second look. */
  readonly checkIsPure?: boolean;
  /** When all threads have ended. */
  readonly final?: () => string | undefined;
  /** Threads that may be killed at any step. */
  readonly mortal?: readonly number[];
  readonly onKill?: (id: number) => void;
  /** State of the scenario itself that matters to later steps (what a consumer has seen so far). */
  readonly extra?: () => number;
}

interface Choice {
  readonly id: number;
  readonly kind: 'run' | 'timeout' | 'kill';
  readonly cost: number;
}

export interface Exploration {
  /** Null when every schedule within the bound holds. */
  readonly violation: string | null;
  /** The choices that lead to it: thread number, `t` for a timeout, `k` for a kill. */
  readonly schedule: string;
  readonly schedules: number;
  readonly steps: number;
  readonly states: number;
  /** Schedules that were cut for length or for the limit of schedules: not a proof then. */
  readonly cut: number;
}

export interface Bound {
  readonly preemptions?: number;
  readonly maxSchedules?: number;
  readonly maxSteps?: number;
}

export type Operation = 'load' | 'store' | 'add' | 'sub' | 'exchange' | 'compareExchange' | 'notify' | 'wait';
type Words = Int32Array | BigInt64Array;

/** The world of one explorer: Atomics as scheduling points, and the virtual clock. */
export class World {
  clock = 0;
  current!: Thread;
  sleepers: Thread[] = [];
  /** What a stand-in saw that must not be: a violation, also where product code would catch an error. */
  fault: string | null = null;
  /** Whether a thread may be stopped before this operation. Where not, it belongs to the step before. */
  isPoint: (operation: Operation, words: Words, i: number) => boolean = () => true;
  /** Memory beside the first: what tells its words from the words of others. */
  readonly #bases = new Map<ArrayBufferLike, number>();

  /** What product code calls instead of Atomics. */
  readonly operations = {
    load: (words: Words, i: number) => this.#op('load', words, i, () => words[i]!),
    store: (words: Words, i: number, v: number) => this.#op('store', words, i, () => ((words as Int32Array)[i] = v)),
    add: (words: Words, i: number, v: number) => this.#op('add', words, i, () => this.#replace(words, i, (words as Int32Array)[i]! + v)),
    sub: (words: Words, i: number, v: number) => this.#op('sub', words, i, () => this.#replace(words, i, (words as Int32Array)[i]! - v)),
    exchange: (words: Words, i: number, v: number) => this.#op('exchange', words, i, () => this.#replace(words, i, v)),
    compareExchange: (words: Words, i: number, expected: number, v: number) =>
      this.#op('compareExchange', words, i, () => (words[i] === expected ? this.#replace(words, i, v) : words[i]!)),
    notify: (words: Words, i: number, count = Number.POSITIVE_INFINITY) => this.#op('notify', words, i, () => this.#notify(this.address(words, i), count)),
    wait: (words: Words, i: number, v: number, ms = Number.POSITIVE_INFINITY) => this.#wait(words, i, v, ms),
  };

  now = (): number => {
    if (this.clock !== 0) this.#note(this.clock | 0);
    return this.clock;
  };

  /** Names a word, whatever view it is seen through. */
  address(words: Words, i: number): number {
    return words.byteOffset / 4 + i + (this.#bases.get(words.buffer) ?? 0);
  }

  /** Words of this memory are named from `base` on. */
  addMemory(buffer: ArrayBufferLike, base: number): void {
    this.#bases.set(buffer, base);
  }

  /** A step of a stand-in: others may run before it, and what it gives is known to the thread. */
  *step<T>(act: () => T, seen: (result: T) => number): Generator<undefined, T, undefined> {
    yield;
    const result = act();
    this.#note(seen(result));
    return result;
  }

  // biome-ignore lint/suspicious/noExplicitAny: words of 64 bits are bigints
  *#op(operation: Operation, words: Words, i: number, act: () => any): Step {
    if (this.isPoint(operation, words, i)) yield;
    const result = act();
    this.#note(Number(result));
    return result;
  }

  *#wait(words: Words, i: number, v: number, ms: number): Step {
    yield;
    if (words[i] !== v) return this.#note(1) && 'not-equal';
    if (ms <= 0) return this.#note(2) && 'timed-out';
    const me = this.current;
    me.state = 'asleep';
    me.word = this.address(words, i);
    me.deadline = this.clock + ms;
    this.sleepers.push(me);
    yield;
    this.#note(me.wake === 'ok' ? 3 : 4);
    return me.wake;
  }

  // biome-ignore lint/suspicious/noExplicitAny: words of 64 bits are bigints
  #replace(words: any, i: number, v: number): any {
    const old = words[i]!;
    words[i] = v;
    return old;
  }

  #notify(i: number, count: number): number {
    let woken = 0;
    for (let k = 0; k < this.sleepers.length && woken < count; ) {
      const thread = this.sleepers[k]!;
      if (thread.word !== i) {
        k++;
        continue;
      }
      this.sleepers.splice(k, 1);
      thread.state = 'ready';
      thread.wake = 'ok';
      woken++;
    }
    return woken;
  }

  /** Puts what the running thread has learned into its history. Stand-ins call it for what they answer. */
  observe(value: number): void {
    this.#note(value);
  }

  /** What the running thread knows is no more than what it knew when its history was `before`, and `value`. */
  forgetSince(before: number, value: number): void {
    this.current.history = before;
    this.#note(value);
  }

  #note(value: number): number {
    const me = this.current;
    me.history = (Math.imul(me.history, 0x01000193) ^ (value + Math.imul(this.clock | 0, 0x9e3779b1))) | 0;
    return value;
  }
}

/** Explores every schedule of the scenario that `make` builds afresh for each run. */
export function explore(world: World, make: () => Scenario, bound: Bound = {}): Exploration {
  const { preemptions = Number.POSITIVE_INFINITY, maxSchedules = 5_000_000, maxSteps = 1_000 } = bound;
  const path: { choices: Choice[]; at: number }[] = [];
  const seen = new Map<number, number>();
  let schedules = 0;
  let steps = 0;
  let cut = 0;
  const describe = () =>
    path
      .map((p) => p.choices[p.at]!)
      .map((c) => c.id + (c.kind === 'timeout' ? 't' : c.kind === 'kill' ? 'k' : ''))
      .join(' ');

  for (;;) {
    const run = runOnce(world, make(), path, seen, preemptions, maxSteps);
    schedules++;
    steps += run.steps;
    if (run.end === 'cut') cut++;
    if (run.violation !== null) return { violation: run.violation, schedule: describe(), schedules, steps, states: seen.size, cut };
    while (path.length > 0 && ++path[path.length - 1]!.at >= path[path.length - 1]!.choices.length) path.pop();
    if (path.length === 0) return { violation: null, schedule: '', schedules, steps, states: seen.size, cut };
    if (schedules >= maxSchedules) return { violation: null, schedule: '', schedules, steps, states: seen.size, cut: cut + 1 };
  }
}

function runOnce(
  world: World,
  scenario: Scenario,
  path: { choices: Choice[]; at: number }[],
  seen: Map<number, number>,
  preemptions: number,
  maxSteps: number,
): { violation: string | null; steps: number; end: 'done' | 'seen' | 'cut' } {
  world.clock = 0;
  world.sleepers = [];
  world.fault = null;
  const threads: Thread[] = scenario.threads.map((start, id) => ({
    id,
    steps: start(),
    state: 'ready',
    word: 0,
    deadline: 0,
    wake: 'ok',
    history: 0,
    taken: 0,
  }));
  const mortal = new Set(scenario.mortal);
  let last = -1;
  let used = 0;
  let steps = 0;
  for (let depth = 0; ; depth++) {
    const choices = choicesOf(threads, last, mortal);
    if (choices.length === 0) {
      const stuck = threads.filter((t) => t.state === 'asleep').map((t) => t.id);
      const violation = stuck.length > 0 ? `asleep for ever: ${stuck.join(', ')}` : (scenario.final?.() ?? null);
      return { violation, steps, end: 'done' };
    }
    if (steps >= maxSteps) return { violation: null, steps, end: 'cut' };
    let choice: Choice;
    if (depth < path.length) choice = path[depth]!.choices[path[depth]!.at]!;
    else {
      const left = preemptions - used;
      const key = signature(world, scenario, threads, last);
      const before = seen.get(key);
      if (before !== undefined && before >= left) return { violation: null, steps, end: 'seen' };
      seen.set(key, left);
      const allowed = choices.filter((c) => c.cost <= left);
      path.push({ choices: allowed, at: 0 });
      choice = allowed[0]!;
    }
    used += choice.cost;
    steps++;
    const thread = threads[choice.id]!;
    if (choice.kind === 'kill') {
      if (thread.state === 'asleep') world.sleepers.splice(world.sleepers.indexOf(thread), 1);
      thread.state = 'killed';
      scenario.onKill?.(choice.id);
    } else {
      if (choice.kind === 'timeout') {
        world.clock = Math.max(world.clock, thread.deadline);
        world.sleepers.splice(world.sleepers.indexOf(thread), 1);
        thread.state = 'ready';
        thread.wake = 'timed-out';
      }
      last = choice.id;
      world.current = thread;
      thread.taken++;
      try {
        if (thread.steps.next().done === true) thread.state = 'done';
      } catch (error) {
        return { violation: `thread ${thread.id} threw: ${(error as Error).message}`, steps, end: 'done' };
      }
    }
    const looked = scenario.checkIsPure === true && depth < path.length - 1;
    const violation = world.fault ?? (looked ? undefined : scenario.check?.());
    if (violation !== undefined) return { violation, steps, end: 'done' };
  }
}

/** What may happen next, the free choices first. A step that is always there comes before one that costs. */
function choicesOf(threads: readonly Thread[], last: number, mortal: ReadonlySet<number>): Choice[] {
  const choices: Choice[] = [];
  const someReady = threads.some((t) => t.state === 'ready');
  const lastReady = last >= 0 && threads[last]!.state === 'ready';
  for (const { id, state, deadline } of threads) {
    if (state === 'ready') choices.push({ id, kind: 'run', cost: lastReady && id !== last ? 1 : 0 });
    else if (state === 'asleep' && deadline !== Number.POSITIVE_INFINITY) choices.push({ id, kind: 'timeout', cost: someReady ? 1 : 0 });
    if (mortal.has(id) && (state === 'ready' || state === 'asleep')) choices.push({ id, kind: 'kill', cost: 1 });
  }
  // Alone, a kill is no progress: it must be chosen, never forced.
  if (choices.every((c) => c.kind === 'kill')) return [];
  return choices.sort((a, b) => a.cost - b.cost);
}

/** 53 bits of everything that decides how the run goes on. */
function signature(world: World, scenario: Scenario, threads: readonly Thread[], last: number): number {
  let a = 0x811c9dc5 | 0;
  let b = 0x1b873593 | 0;
  const mix = (v: number) => {
    a = Math.imul(a ^ v, 0x01000193);
    a ^= a >>> 15;
    b = Math.imul(b + v, 0x85ebca6b);
    b ^= b >>> 13;
  };
  if (scenario.watched === undefined) for (const word of scenario.words) mix(word);
  else for (const at of scenario.watched) mix(scenario.words[at]!);
  for (const t of threads) {
    mix(t.history);
    mix(t.taken);
    mix(t.state === 'ready' ? (t.wake === 'ok' ? 1 : 2) : t.state === 'asleep' ? 3 + t.word : t.state === 'done' ? -1 : -2);
    if (t.state === 'asleep') mix(t.deadline === Number.POSITIVE_INFINITY ? -1 : Math.round(t.deadline * 1000));
  }
  for (const t of world.sleepers) mix(100 + t.id);
  mix(last);
  mix(Math.round(world.clock * 1000));
  mix(scenario.extra?.() ?? 0);
  return (a >>> 0) * 0x200000 + (b & 0x1fffff);
}
