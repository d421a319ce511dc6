/**
 * What happens at the end of the process.
 *
 * Natural end (the event loop is empty): accepted bytes are drained for at most 5 s. `process.exit` does not wait for them.
 * In both cases Node then waits for every thread, and a thread in a system call that never returns would hold the process
 * for ever: such a process leaves at once, with the exit code it was about to have.
 */
import { loadNativeCore } from '../shared/native-core.ts';
import { now } from '../shared/sync/clock.ts';
import type { ProcessRegistry } from './process-registry.ts';

const DRAIN_MS = 5_000;
/** How long a file operation under way at the end may take. */
const LAST_OPERATION_MS = 2_000;
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
    if (registry.stuck.size === 0 && !sitsInSystemCall(registry)) return;
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

/** Whether a loop thread is in a file operation and does not come out of it. Nothing but this wait is left to do on main by now. */
function sitsInSystemCall(registry: ProcessRegistry): boolean {
  const begin = now();
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (;;) {
    const elapsed = now() - begin;
    const busy = registry.threads
      .list()
      .filter(({ state, kind, activity }) => state === 'alive' && (kind === 'store-worker' || kind === 'snapshot-writer') && activity === 'file')
      // An operation that began after we started to look is not the one that hangs.
      .some(({ sinceMs }) => sinceMs + POLL_MS >= elapsed);
    if (!busy) return false;
    if (elapsed >= LAST_OPERATION_MS) return true;
    Atomics.wait(pause, 0, 0, POLL_MS);
  }
}
