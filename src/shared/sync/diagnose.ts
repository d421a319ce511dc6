/**
 * What every thread does and waits for, who holds which lock, and any cycle: read from shared words, no lock taken, no other
 * thread asked. So it works on the main thread while every other thread is stuck.
 *
 * The words are read while they may change. A cycle is reported only when two reads in a row show it with the same waits.
 */
import type { Diagnosis } from '../../host/api.ts';
import type { LockInfo } from './lock-table.ts';
import type { ThreadInfo, ThreadTable } from './thread-table.ts';
import { DEFAULT_NORMAL_MS } from './thread-table.ts';

/** A session, a `LockTable`, … : whatever can tell its locks. */
export interface LockSource {
  readLocks(threads: ThreadTable): LockInfo[];
}

export interface DiagnoseOptions {
  /** How many of the last transitions go into the text. Default 20. */
  readonly transitions?: number;
}

interface Snapshot {
  readonly threads: ThreadInfo[];
  readonly locks: LockInfo[];
}

export function diagnose(table: ThreadTable, sources: readonly LockSource[], options: DiagnoseOptions = {}): Diagnosis {
  const read = (): Snapshot => ({ threads: table.list(), locks: sources.flatMap((source) => source.readLocks(table)) });
  const first = cyclesOf(read());
  const now = read();
  const label = labels(now.threads);
  const cycles = cyclesOf(now)
    .filter((cycle) => first.some((other) => other.key === cycle.key))
    .map((cycle) => cycle.edges.map((edge) => describeEdge(edge, label)).join('; '));
  const owners = new Set(now.locks.map((lock) => lock.ownerToken));
  // The dead are shown as long as a lock is lost with them.
  const shown = now.threads.filter(({ state, token }) => state !== 'dead' || owners.has(token));
  const threads = shown.map((thread) => describeThread(thread, now.locks, label));
  const locks = now.locks.map((lock) => ({
    name: lock.name,
    held: lock.held,
    owner: lock.ownerSlot === null ? null : lock.ownerDead ? `${lock.owner} (dead)` : label(lock.ownerSlot),
    site: lock.site,
    sinceMs: lock.sinceMs,
    waiters: lock.waiters,
    longestHoldMs: lock.longestHoldMs,
    longestWaitMs: lock.longestWaitMs,
  }));
  const transitions = table.transitions.read(options.transitions ?? 20).map((t) => {
    const site = t.site === 0 ? '' : ` at ${table.strings.read(t.site)}`;
    return `-${seconds(table.since(t.atMs))}  ${label(t.slot)} ${t.what} ${table.strings.read(t.subject)}${site}`;
  });
  return { threads, locks, cycles, text: render(threads, locks, cycles, transitions) };
}

type Label = (slot: number) => string;

/** Names, told apart by slot where several living threads have the same one. */
function labels(threads: readonly ThreadInfo[]): Label {
  const bySlot = new Map(threads.map((thread) => [thread.slot, thread]));
  const count = new Map<string, number>();
  for (const { name, state } of threads) if (state !== 'dead') count.set(name, (count.get(name) ?? 0) + 1);
  return (slot) => {
    const name = bySlot.get(slot)?.name ?? `slot ${slot}`;
    return (count.get(name) ?? 0) > 1 ? `${name}[${slot}]` : name;
  };
}

function describeThread(thread: ThreadInfo, locks: readonly LockInfo[], label: Label): Diagnosis['threads'][number] {
  const { wait } = thread;
  const base = { name: label(thread.slot), kind: thread.kind, alive: thread.state === 'alive' };
  const doing = [thread.activity, thread.detail].filter((part) => part !== '').join(' ');
  if (wait === null) {
    const on = thread.dependsOn === null ? '' : ` (of ${label(thread.dependsOn)})`;
    return { ...base, activity: thread.activity, detail: thread.detail + on, sinceMs: thread.sinceMs, overdueMs: thread.overdueMs };
  }
  const owner = locks.find((lock) => lock.id === wait.id)?.ownerSlot ?? null;
  const held = owner === null || owner === thread.slot ? '' : `, held by ${label(owner)}`;
  const during = doing === 'idle' ? '' : `, during ${doing}`;
  return {
    ...base,
    activity: wait.kind,
    detail: `${wait.name} at ${wait.site}${held}${during}`,
    sinceMs: wait.sinceMs,
    overdueMs: Math.max(0, wait.sinceMs - DEFAULT_NORMAL_MS),
  };
}

/** Thread `from` waits for something that only thread `to` can give. */
interface Edge {
  readonly from: number;
  readonly to: number;
  readonly what: string;
  /** What tells this wait from a later one of the same kind. */
  readonly key: string;
}

interface Cycle {
  readonly edges: Edge[];
  readonly key: string;
}

/** Each thread waits for one thing at a time, so following the only edge from every thread finds every cycle. */
function cyclesOf({ threads, locks }: Snapshot): Cycle[] {
  const owner = new Map(locks.filter((lock) => lock.ownerSlot !== null).map((lock) => [lock.id, lock]));
  const edges = new Map<number, Edge>();
  for (const thread of threads) {
    if (thread.state !== 'alive') continue;
    const edge = edgeOf(thread, owner);
    if (edge !== null) edges.set(thread.slot, edge);
  }
  const cycles = new Map<string, Cycle>();
  for (const start of edges.keys()) {
    const path: Edge[] = [];
    let at = start;
    while (!path.some((edge) => edge.from === at)) {
      const edge = edges.get(at);
      if (edge === undefined) break;
      path.push(edge);
      at = edge.to;
    }
    const loop = path.slice(path.findIndex((edge) => edge.from === at));
    if (loop.length === 0 || loop[loop.length - 1]!.to !== at || loop[0]!.from !== at) continue;
    // The same cycle found from any of its threads is one cycle: begin at its lowest slot.
    const lowest = loop.reduce((best, edge, i) => (edge.from < loop[best]!.from ? i : best), 0);
    const rotated = [...loop.slice(lowest), ...loop.slice(0, lowest)];
    const key = rotated.map((edge) => `${edge.from}>${edge.to}:${edge.key}`).join('|');
    cycles.set(key, { edges: rotated, key });
  }
  return [...cycles.values()];
}

function edgeOf(thread: ThreadInfo, owners: ReadonlyMap<number, LockInfo>): Edge | null {
  const { wait, slot: from } = thread;
  if (wait !== null && wait.kind === 'lock') {
    const lock = owners.get(wait.id);
    // A thread that has just got the lock shows its wait for another instant; nobody waits for himself.
    if (lock === undefined || lock.ownerSlot === from) return null;
    return {
      from,
      to: lock.ownerSlot!,
      what: `waits for lock ${wait.name} (at ${wait.site}), held at ${lock.site} by`,
      key: `lock ${wait.id} ${thread.waitStamp}`,
    };
  }
  if (thread.dependsOn === null || thread.dependsOn === from) return null;
  const what =
    wait === null ? `waits for ${thread.activity} ${thread.detail} of` : `waits for condition ${wait.name} (at ${wait.site}) that is in the hands of`;
  return { from, to: thread.dependsOn, what, key: `${thread.activity} ${thread.activityStamp}` };
}

function describeEdge(edge: Edge, label: Label): string {
  return `${label(edge.from)} ${edge.what} ${label(edge.to)}`;
}

function render(threads: Diagnosis['threads'], locks: Diagnosis['locks'], cycles: readonly string[], transitions: readonly string[]): string {
  const lines = [`threads (${threads.length})`];
  for (const t of threads) {
    const state = t.alive ? '' : ' [dead]';
    const over = t.overdueMs > 0 ? `, ${seconds(t.overdueMs)} longer than normal` : '';
    lines.push(`  ${t.name}${state}: ${t.activity}${t.detail === '' ? '' : ` ${t.detail}`} for ${seconds(t.sinceMs)}${over}`);
  }
  const held = locks.filter((lock) => lock.held || lock.waiters > 0);
  lines.push(`locks (${locks.length}, ${held.length} held or waited for)`);
  for (const l of held) {
    const by = l.owner === null ? 'free' : `held for ${seconds(l.sinceMs)} by ${l.owner} at ${l.site}`;
    lines.push(`  ${l.name}: ${by}, ${l.waiters} waiting; longest hold ${seconds(l.longestHoldMs)}, longest wait ${seconds(l.longestWaitMs)}`);
  }
  lines.push(cycles.length === 0 ? 'no cycle' : `CYCLES (${cycles.length}): these threads wait for each other and will not go on`);
  for (const cycle of cycles) lines.push(`  ${cycle}`);
  if (transitions.length > 0) lines.push('last transitions, newest last', ...transitions.map((t) => `  ${t}`));
  return lines.join('\n');
}

function seconds(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
