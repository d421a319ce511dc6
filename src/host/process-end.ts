/**
 * What happens at the end of the process.
 *
 * Natural end (the event loop is empty): accepted bytes are drained for at most 5 s. `process.exit` does not wait for them.
 * In both cases Node then waits for every thread, and a thread in a system call or a graph that never returns would hold
 * the process for ever: such a process leaves by the immediate exit, with the exit code it was about to have.
 */
import { loadNativeCore } from '../shared/native-core.ts';
import { now } from '../shared/sync/clock.ts';
import type { ThreadInfo } from '../shared/sync/thread-table.ts';
import type { ProcessRegistry } from './process-registry.ts';

const DRAIN_MS = 5_000;
/** How long a file operation under way at the end may take, and how much longer than normal a native call. */
const LAST_OPERATION_MS = 2_000;
/** The most that is waited for here, whatever a thread says is normal. */
const LAST_WAIT_MS = 60_000;
const POLL_MS = 20;

export function watchProcessEnd(registry: ProcessRegistry): void {
  let given = false;
  process.on('beforeExit', () => {
    if (given || !somethingPending(registry)) return;
    const end = now() + DRAIN_MS;
    // The timer keeps the event loop alive; when it is let go, 'beforeExit' comes again.
    const timer = setInterval(() => {
      if (somethingPending(registry) && now() < end) return;
      given = somethingPending(registry);
      clearInterval(timer);
    }, POLL_MS);
  });
  const onExit = (code: number) => {
    if (registry.stuck.size === 0 && !sitsInNativeCall(registry)) return;
    const core = loadNativeCore();
    if (core === null) return;
    // Listeners of the app that were added after ours have not run yet.
    const listeners = process.listeners('exit');
    for (const listener of listeners.slice(listeners.indexOf(onExit) + 1)) Reflect.apply(listener, process, [code]);
    core.exitNow(Number(process.exitCode ?? code));
  };
  process.on('exit', onExit);
}

function somethingPending(registry: ProcessRegistry): boolean {
  return [...registry.running].some((hub) => hub.pending);
}

/** Whether a thread of ours is in a native or system call and does not come out of it. Nothing but this wait is left to do on main by now. */
function sitsInNativeCall(registry: ProcessRegistry): boolean {
  const begin = now();
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (;;) {
    const elapsed = now() - begin;
    // A call that began after we started to look is not the one that hangs.
    const inside = registry.threads.list().filter((thread) => thread.state === 'alive' && mayHang(thread) && thread.sinceMs + POLL_MS >= elapsed);
    if (inside.length === 0) return false;
    if (elapsed >= LAST_WAIT_MS || inside.some((thread) => hangs(thread, elapsed))) return true;
    Atomics.wait(pause, 0, 0, POLL_MS);
  }
}

function mayHang({ kind, activity }: ThreadInfo): boolean {
  if (kind === 'engine') return activity === 'native' || activity === 'stream' || activity === 'load' || activity === 'file';
  return (kind === 'store-worker' || kind === 'snapshot-writer') && activity === 'file';
}

/** A disk should answer soon; a graph may be computed for as long as its thread has said. */
function hangs({ kind, overdueMs }: ThreadInfo, elapsed: number): boolean {
  return kind === 'engine' ? overdueMs >= LAST_OPERATION_MS : elapsed >= LAST_OPERATION_MS;
}
