/**
 * Bugs of a session's protocol, each planted into the compiled source by itself, the smallest scenario that shows it, and how it
 * shows.
 */
import type { Bound, Scenario } from './scheduler.ts';
import { RENAME_FAILS } from './session-cases.ts';
import { closedWhileWaiting, failedWhileWaiting, pair, reservations, saving } from './session-scenarios.ts';
import type { SessionOptions, SessionWorld } from './session-world.ts';
import type { Mutation } from './transform.ts';

export interface SessionBug {
  readonly name: string;
  readonly mutations: readonly Mutation[];
  readonly scenario: (env: SessionWorld) => Scenario;
  readonly violation: RegExp;
  readonly options?: SessionOptions;
  readonly bound?: Bound;
}

const change = (path: string, find: RegExp, replace: string): Mutation => ({ path, find, replace });
const session = (name: string, find: RegExp, replace: string) => change(`shared/session/${name}`, find, replace);

/** Write-through with a limit that may pass at any step. */
const LIMITED: SessionOptions = { limits: { reserveWaitMs: 0, inlineWriteLimitMs: 5, publishGraceMs: 5 } };
const THREE: Bound = { preemptions: 2 };

const withCleanup = (env: SessionWorld) => saving(env, { saves: [1], beside: ['cleanup'] });
/** Room for both: the second does not wait for the end of the first. */
const againWithCleanup = (env: SessionWorld) => saving(env, { saves: [1, 1], bytes: 1000, beside: ['cleanup'] });
const writeThrough = (env: SessionWorld) => saving(env, { saves: [1], full: true });

export const SESSION_BUGS: readonly SessionBug[] = [
  {
    name: 'bytes are given back and nobody is told (lost wake-up)',
    mutations: [session('pending', /this\.#owner\.pendingCond\.broadcast\(\);/, '')],
    scenario: (env) => reservations(env, { threads: 2 }),
    violation: /asleep for ever/,
  },
  {
    name: 'a waiter that takes its wake-up for room (missing recheck)',
    mutations: [change('shared/sync/condition', /this\.wait\(Math\.min\(left, SLICE_MS\), ticket, site\);/, '$& return true;')],
    scenario: (env) => reservations(env, { threads: 3 }),
    violation: /refused/,
    bound: THREE,
  },
  {
    name: 'a broadcast that wakes one of two waiters of pendingCond (notify-one)',
    mutations: [change('shared/sync/condition', /Atomics\.notify\(words, at \+ SEQ\)/, 'Atomics.notify(words, at + SEQ, 1)')],
    scenario: failedWhileWaiting,
    violation: /asleep for ever/,
    options: { closed: true },
    bound: THREE,
  },
  {
    name: 'a close without a lock that is looked at before the ticket',
    mutations: [
      change(
        'shared/sync/condition',
        /const ticket = this\.ticket\(\);\s+if \(predicate\(\)\)\s+return true;/,
        'if (predicate()) return true; const ticket = this.ticket();',
      ),
    ],
    scenario: (env) => closedWhileWaiting(env, { waiters: 1 }),
    violation: /asleep for ever/,
    options: { closed: true },
  },
  {
    name: 'a waiter for bytes that does not hear of a close',
    mutations: [session('pending', /return met \|\| this\.#owner\.state !== 'open';/, 'return met;')],
    scenario: (env) => closedWhileWaiting(env, { waiters: 1 }),
    violation: /asleep for ever/,
    options: { closed: true },
  },
  {
    name: 'bytes given back while the writer still reads them (early release)',
    mutations: [
      change(
        'snapshot-writer/write-item',
        /let renamed = false;/,
        "let renamed = false; session.settlePending('early', () => session.space.dropBytes(ref.item));",
      ),
    ],
    scenario: (env) => saving(env, { saves: [1, 2] }),
    violation: /holds the image of/,
    bound: THREE,
  },
  {
    name: 'a place that is not checked and charged under one lock',
    mutations: [session('item-space', /return this\.#place\(item, bytes, bytes\);/, 'return this.#place(item, bytes, 0);')],
    scenario: (env) => saving(env, { saves: [1] }),
    violation: /bytes are held/,
  },
  {
    name: 'the registry is entered outside of pending',
    mutations: [
      session('publication', /acquire\(locks\.registry, limits\.lockWaitMs, 'publish'\);/, 'locks.pending.release(); $&'),
      session('publication', /locks\.registry\.release\(\);/, "$& acquire(locks.pending, limits.lockWaitMs, 'publish');"),
    ],
    scenario: (env) => saving(env, { saves: [1], beside: ['load'] }),
    violation: /no item is for|without pending/,
    bound: THREE,
  },
  {
    name: 'an item that is published and the writer not told',
    mutations: [session('publication', /session\.writerBell\.ring\(\);/, '')],
    scenario: (env) => saving(env, { saves: [1], beside: ['take'] }),
    violation: /asleep for ever/,
    bound: THREE,
  },
  {
    name: 'waiting → abandoned and waiting → publishing as a load and a store',
    mutations: [
      session(
        'item-table',
        /return Atomics\.compareExchange\((this\.words, at\(item\) \+ ITEM\.decision), DECISION\.waiting, decision\) === DECISION\.waiting;/,
        'return Atomics.load($1) === DECISION.waiting && Atomics.store($1, decision) === decision;',
      ),
    ],
    scenario: writeThrough,
    violation: /orphan|the ledger/,
    options: LIMITED,
    bound: { preemptions: 3 },
  },
  {
    name: 'a saver that frees the item it leaves to the writer',
    mutations: [change('engine-thread/boundary/overflow', /if \(items\.get\(ref\.item, ITEM\.state\) === STATE\.spent\)/, 'if (true)')],
    scenario: writeThrough,
    violation: /no item is for|pages are in use|not free/,
    options: LIMITED,
    bound: THREE,
  },
  {
    name: 'a record of the same boundary that is taken for an earlier one (wrong generation)',
    mutations: [session('publication', / && registry\.get\(index, RECORD\.generation\) === ref\.generation/, '')],
    scenario: againWithCleanup,
    violation: /not in the registry/,
    bound: THREE,
  },
  {
    name: 'a cancel mark that is not looked at after the rename',
    mutations: [session('publication', /if \(items\.isCancelled\(ref\.item\)\)\s+return 'cancelled';/, '')],
    scenario: withCleanup,
    violation: /orphan/,
    bound: THREE,
  },
  {
    name: 'a cancelled file that is renamed and left',
    mutations: [change('snapshot-writer/write-item', /renamed \|\| !\(error instanceof Stopped\) \? \[temporary, final\] : \[temporary\]/, '[temporary]')],
    scenario: withCleanup,
    violation: /orphan/,
    bound: THREE,
  },
  {
    name: 'a temporary file that is left when the item was cancelled',
    mutations: [change('snapshot-writer/write-item', /\? \[temporary, final\] : \[temporary\]/, '? [final] : []')],
    scenario: withCleanup,
    violation: /orphan/,
    bound: THREE,
  },
  {
    name: 'bytes of a cancelled item that nobody took are kept',
    mutations: [session('publication', /(items\.set\(item, ITEM\.result, RESULT\.dropped\);\s+)space\.dropBytes\(item\);/, '$1')],
    scenario: withCleanup,
    violation: /bytes are held/,
    bound: THREE,
  },
  {
    name: 'cleanup takes a file that is being detached',
    mutations: [session('cleanup', /if \(record\.state === FILE_STATE\.detaching && [^\n]+\{/, 'if (false) {')],
    scenario: (env) => saving(env, { saves: [1], beside: ['take', 'cleanup'] }),
    violation: /boundaries are written|condemned files|orphan/,
    bound: THREE,
  },
  {
    name: 'a cleanup that passes a file by whose detaching then fails',
    mutations: [session('cleanup', /registry\.set\(index, RECORD\.forgotten, 1\);/, '')],
    scenario: (env) => pair(env, { before: 'written', threads: ['take', 'cleanup'] }),
    violation: /files are left after the cleanup/,
    options: RENAME_FAILS,
    bound: THREE,
  },
  {
    name: 'a file that is detached without a mark',
    mutations: [session('staged-files', /registry\.set\(index, RECORD\.state, FILE_STATE\.detaching\);/, '')],
    scenario: (env) => saving(env, { saves: [1], beside: ['take'] }),
    violation: /that is not there/,
    bound: THREE,
  },
  {
    name: 'a swept record is removed although a save has taken it over',
    mutations: [session('cleanup', /if \(registry\.get\(next\.index, RECORD\.state\) !== FILE_STATE\.condemned \|\| [^\n]+\s+return;/, '')],
    scenario: againWithCleanup,
    violation: /not in the registry/,
    bound: THREE,
  },
  {
    name: 'cleanup removes the state of a block that the store worker still has to publish',
    mutations: [session('cleanup', / \|\| claimedByUnit\(session, items\.keyOf\(item\), items\.get\(item, ITEM\.tokenCount\)\)/, '')],
    scenario: (env) => saving(env, { saves: [1], bytes: 1000, unit: 'taken', ends: true }),
    violation: /the unit's state is absent|orphan/,
    bound: THREE,
  },
  {
    name: 'a unit that ends after its request and leaves the staged file',
    mutations: [session('units', /if \(claimed !== null\)/, 'if (false)')],
    scenario: (env) => saving(env, { saves: [1], bytes: 1000, unit: 'failed', ends: true }),
    violation: /are left after the last cleanup/,
    bound: THREE,
  },
  {
    name: 'a reader that does not hold on to the bytes it copies',
    mutations: [change('engine-thread/boundary/snapshot-store', /session\.space\.beginRead\(item\);/, '')],
    scenario: (env) => saving(env, { saves: [1, 2, 3], beside: ['load'] }),
    violation: /bytes of another boundary/,
    bound: { preemptions: 1 },
  },
  {
    name: 'a drain that is looked at after the queues',
    mutations: [change('snapshot-writer/loop', /if \(draining\)/, "if (control.stop === 'drain')")],
    scenario: (env) => saving(env, { saves: [1] }),
    violation: /accepted and not written/,
    bound: THREE,
  },
  {
    name: 'a record read without the lock of the registry',
    mutations: [
      session('staged-files', /session\.underRegistry\('detach', \(\) => \{/, '(() => {'),
      session('staged-files', /(generation: registry\.get\(index, RECORD\.generation\) \};\s+\}\))/, '$1()'),
    ],
    scenario: (env) => saving(env, { saves: [1], beside: ['take'] }),
    violation: /without registry/,
    bound: THREE,
  },
];
