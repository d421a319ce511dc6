/**
 * What the explorer runs of a session's protocol: few threads, each with a few calls of the product, and what must be true of
 * their results. What must hold in every session lies in `SessionWorld`.
 */
import { requestKey } from '../../../src/shared/session/request-key.ts';
import type { Scenario, Step } from './scheduler.ts';
import { ITEM_BYTES, type SessionWorld } from './session-world.ts';
import type { Steps } from './world.ts';

const FOREVER = Number.POSITIVE_INFINITY;
const REQUEST = 'request';
/** Of such items there is room for two. */
const SMALL = 1000;

interface Result {
  readonly ok: boolean;
  readonly how?: string;
}

/** Threads that reserve all of the cap and give it back. */
export function reservations(env: SessionWorld, { threads, rounds = 1 }: { threads: number; rounds?: number }): Scenario {
  env.reset();
  let got = 0;
  const waiter = (id: number) =>
    function* (): Step {
      for (let round = 0; round < rounds; round++) {
        const reservation: Steps = yield* env.session(id).pending.reserve(ITEM_BYTES, FOREVER);
        if (reservation !== null) {
          env.reservations.push(reservation);
          got++;
          yield* reservation.release();
        }
        env.world.forgetSince(0, round);
      }
      return undefined;
    };
  return env.scenario(
    Array.from({ length: threads }, (_, id) => waiter(id)),
    { final: () => (got === threads * rounds ? undefined : 'a waiter without deadline was refused'), extra: () => got },
  );
}

/** Some wait for bytes; another holds all of them, closes the session without a lock, and keeps them: nothing else wakes the waiters. */
export function closedWhileWaiting(env: SessionWorld, { waiters }: { waiters: number }): Scenario {
  env.reset();
  let ended = 0;
  const waiter = (id: number) =>
    function* (): Step {
      const reservation: Steps = yield* env.session(id).pending.reserve(ITEM_BYTES, FOREVER);
      if (reservation !== null) {
        env.reservations.push(reservation);
        yield* reservation.release();
      }
      ended++;
      return undefined;
    };
  function* closer(): Step {
    const reservation: Steps = yield* env.session(waiters).pending.tryReserve(ITEM_BYTES);
    if (reservation !== null) env.reservations.push(reservation);
    yield* env.session(waiters).close();
    return undefined;
  }
  return env.scenario([...Array.from({ length: waiters }, (_, id) => waiter(id)), closer], { final: () => null, extra: () => ended });
}

/**
 * Both kinds of waiters on `pendingCond`, for bytes and for a staged file, and a session that is given up without a lock: no
 * writer ever comes, so the two must hear of it from whoever gives up.
 */
export function failedWhileWaiting(env: SessionWorld): Scenario {
  env.reset();
  const ended: string[] = [];
  function* engine(): Step {
    yield* env.store(0, false).save(REQUEST, 1, [{ bytes: ITEM_BYTES }]);
    yield* env.session(0).fail();
    return undefined;
  }
  function* forBytes(): Step {
    const reservation: Steps = yield* env.session(1).pending.reserve(ITEM_BYTES, FOREVER);
    if (reservation !== null) {
      env.reservations.push(reservation);
      yield* reservation.release();
    }
    ended.push('bytes');
    return undefined;
  }
  function* forFile(): Step {
    const taken: Steps = yield* env.store(2).takeStagedFile(REQUEST, 1);
    ended.push(taken.ok ? 'taken' : taken.reason);
    return undefined;
  }
  return env.scenario([engine, forBytes, forFile], {
    final: () => (ended.includes('taken') ? 'a file was taken that nobody wrote' : null),
    extra: () => ended.length,
  });
}

export type Action = 'cleanup' | 'cleanupAll' | 'mark' | 'take' | 'load' | 'close' | 'reserve' | 'save' | 'write' | 'save and write';

/** What a thread may do with the request's first boundary, `at`. What must not come of it is added to `failures`. */
function actions(env: SessionWorld, at: number, failures: string[]): Record<Action, (id: number) => Step> {
  return {
    *cleanup(id: number): Step {
      if (!(yield* env.store(id).cleanupRequest(REQUEST)).complete) failures.push('cleanup is not complete');
      return undefined;
    },
    *cleanupAll(id: number): Step {
      if (!(yield* env.store(id).cleanupAll()).complete) failures.push('cleanupAll is not complete');
      return undefined;
    },
    *mark(id: number): Step {
      yield* env.store(id, false).cleanupRequest(REQUEST);
      return undefined;
    },
    *take(id: number): Step {
      const taken: Steps = yield* env.store(id).takeStagedFile(REQUEST, at);
      if (taken.ok) env.taken.push(taken.path);
      else if (taken.reason !== 'absent' && !(env.diskFails && taken.reason === 'io')) failures.push(`taking failed: ${taken.reason} ${taken.detail}`);
      return undefined;
    },
    *load(id: number): Step {
      const loaded: Steps = yield* env.store(id).load(REQUEST, at);
      if (loaded.ok && env.boundaryOf(loaded.layers[0]) !== env.pathOf(REQUEST, at)) failures.push(`load gave the bytes of another boundary`);
      return undefined;
    },
    *close(id: number): Step {
      yield* env.session(id).close();
      return undefined;
    },
    *save(id: number): Step {
      yield* env.store(id, false).save(REQUEST, at, [{ bytes: SMALL }]);
      return undefined;
    },
    *'save and write'(id: number): Step {
      yield* this.save(id);
      yield* this.write(id);
      return undefined;
    },
    *write(id: number): Step {
      const queue = env.queue(id);
      while ((yield* queue.step()) === 'worked');
      return undefined;
    },
    *reserve(id: number): Step {
      const reservation: Steps = yield* env.session(id).pending.reserve(ITEM_BYTES, FOREVER);
      if (reservation === null) return undefined;
      env.reservations.push(reservation);
      yield* reservation.release();
      return undefined;
    },
  };
}

export interface SaveScenario {
  /** Token counts that the engine saves, one after the other. */
  readonly saves: readonly number[];
  readonly bytes?: number;
  /** The engine holds all of the cap meanwhile, so that each save overflows. */
  readonly full?: boolean;
  /** The first boundary's block goes to the store worker (a thread beside), which takes the staged file, or fails before. */
  readonly unit?: 'taken' | 'failed';
  /** What other threads do beside engine and writer. */
  readonly beside?: readonly Action[];
  /** The engine ends the request when it has saved. */
  readonly ends?: boolean;
}

/** An engine that saves, the writer's loop, and whoever is beside them. */
export function saving(env: SessionWorld, { saves, bytes = ITEM_BYTES, full = false, unit, beside = [], ends = false }: SaveScenario): Scenario {
  env.reset();
  const results: Result[] = [];
  const failures: string[] = [];
  // Nobody takes or removes anything, and the disk works: what was accepted must be there.
  const undisturbed = beside.every((what) => ['load', 'close', 'reserve'].includes(what)) && !ends && unit === undefined && !env.diskFails;
  const session = (id: number) => env.session(id);

  function* engine(): Step {
    const store = env.store(0, false);
    if (full) env.reservations.push(yield* session(0).pending.tryReserve(ITEM_BYTES));
    for (const tokens of saves) {
      const result: Result = yield* store.save(REQUEST, tokens, [{ bytes }]);
      results.push(result);
      if (result.how === 'written' && !env.files.wasPublished(env.pathOf(REQUEST, tokens))) failures.push(`save said that ${tokens} is written, and it is not`);
      env.world.forgetSince(0, results.length);
    }
    if (unit !== undefined) {
      const image = { totalBytes: bytes, number: env.nextImage('block') };
      const spec = { key: requestKey(REQUEST), requestNo: 1, tokenCount: saves[0], block: '00'.repeat(32), hasState: true, image };
      const outcome = yield* env.code.submitUnit(session(0), spec);
      if (outcome !== 'queued') failures.push(`the unit was refused: ${outcome}`);
    }
    if (full) yield* (env.reservations[0] as Steps).release();
    if (ends) yield* store.cleanupRequest(REQUEST);
    return undefined;
  }

  /** As the store worker does with a unit: claimed until it is done, well or badly. */
  function* storeWorker(id: number): Step {
    const bell = session(id).storeBell;
    for (;;) {
      const seen: number = yield* bell.seen();
      const taken: Steps = yield* env.code.takeUnit(session(id));
      if (taken === null) {
        yield* bell.wait(seen);
        continue;
      }
      try {
        if (unit === 'failed') return undefined;
        const file: Steps = yield* env.code.takeStaged(session(id), env.files, taken.key, taken.tokenCount, FOREVER);
        if (file.ok) env.taken.push(file.path);
        else failures.push(`the unit's state is ${file.reason}`);
      } finally {
        yield* env.code.finishUnit(session(id), taken);
      }
      return undefined;
    }
  }

  const others = actions(env, saves[0]!, failures);
  const working = [engine, ...beside.map((what, i) => () => others[what](i + 2))];
  if (unit !== undefined) working.push(() => storeWorker(beside.length + 2));
  const [first, ...rest] = working.map((program) => env.working(program));
  return env.scenario([first!, env.writer(1), ...rest], {
    check: () => failures[0],
    final: () => {
      const lost = results.findIndex((result, i) => undisturbed && result.ok && !env.files.isFile(env.pathOf(REQUEST, saves[i]!)));
      if (lost >= 0) return `save ${lost + 1} was accepted and not written`;
      const kept = env.files.files.length - env.taken.length;
      return ends && kept > 0 ? `${kept} files are left after the last cleanup` : undefined;
    },
    extra: () => results.reduce((sum, r) => sum * 8 + (r.ok ? 1 : 2), 0),
  });
}

/**
 * Two threads by themselves, over a boundary that lies in the queue or in its file already. When both have ended, the writer
 * does what is left.
 */
export function pair(env: SessionWorld, { before, threads }: { before: 'nothing' | 'queued' | 'written'; threads: readonly [Action, Action] }): Scenario {
  env.reset(false);
  const failures: string[] = [];
  const can = actions(env, 1, failures);
  const is = (...some: Action[]) => threads.some((action) => some.includes(action));
  const cleaned = is('cleanup', 'cleanupAll', 'mark') && !is('save', 'save and write');
  if (before !== 'nothing') env.runAlone(3, () => can.save(3));
  if (before === 'written') env.runAlone(4, () => can.write(4));
  return env.scenario(
    threads.map((action, id) => () => can[action](id)),
    {
      check: () => failures[0],
      final: () => {
        env.runAlone(4, () => can.write(4));
        const left = env.files.files.length - env.taken.length;
        return cleaned && left > 0 ? `${left} files are left after the cleanup` : failures[0];
      },
    },
  );
}
