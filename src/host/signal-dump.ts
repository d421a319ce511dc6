/**
 * The opt-in dump on a signal: `diagnose()` of the process, written when the operating system tells it to.
 *
 * Main thread. One handler for each signal, however many engines asked for it; it goes with the last of them. A signal handler
 * does not keep the process alive. Being JavaScript it runs when the main thread next turns its event loop: while app code
 * keeps that thread busy, the dump waits.
 */
import { appendFileSync, writeSync } from 'node:fs';
import { constants } from 'node:os';
import type { DiagnoseOnSignal } from './api.ts';
import { invalid } from './validate.ts';

export interface SignalDump {
  readonly signal: NodeJS.Signals;
  /** Where the dump is appended; null: standard error. */
  readonly file: string | null;
}

/** Those that mean something else to the process or cannot be handled. SIGUSR1 starts Node's inspector. */
const REFUSED: Readonly<Record<string, string>> = {
  SIGUSR1: "another signal: SIGUSR1 starts Node's inspector. 'SIGUSR2' is free",
  SIGPROF: "another signal: SIGPROF is the profiler's. 'SIGUSR2' is free",
  ...Object.fromEntries(
    ['SIGKILL', 'SIGSTOP', 'SIGSEGV', 'SIGBUS', 'SIGFPE', 'SIGILL', 'SIGABRT'].map((name) => [name, "a signal that can be handled, such as 'SIGUSR2'"]),
  ),
  SIGINT: "a signal that does not end the process, such as 'SIGUSR2'",
  SIGTERM: "a signal that does not end the process, such as 'SIGUSR2'",
};

/** Checks the option; null when it was not given. */
export function resolveSignalDump(option: DiagnoseOnSignal | undefined): SignalDump | null {
  if (option === undefined) return null;
  const field = 'options.diagnoseOnSignal';
  if (typeof option !== 'string' && (typeof option !== 'object' || option === null || Array.isArray(option)))
    throw invalid(field, 'the name of a signal, or { signal, file }', option);
  const { signal, file, ...rest } = typeof option === 'string' ? { signal: option } : (option as { signal: string; file?: string });
  const [unknown] = Object.keys(rest);
  if (unknown !== undefined) throw invalid(`${field}.${unknown}`, 'absent (known: signal, file)', (rest as Record<string, unknown>)[unknown]);
  const at = typeof option === 'string' ? field : `${field}.signal`;
  const refused = typeof signal === 'string' ? REFUSED[signal] : undefined;
  if (refused !== undefined) throw invalid(at, refused, signal);
  if (typeof signal !== 'string' || !(signal in constants.signals)) throw invalid(at, "the name of a signal, such as 'SIGUSR2'", signal);
  if (file !== undefined && (typeof file !== 'string' || file === '')) throw invalid(`${field}.file`, 'the path of a file', file);
  return { signal: signal as NodeJS.Signals, file: file ?? null };
}

interface Installed {
  readonly listener: () => void;
  /** How many engines asked, for each place the dump goes to; the key '' is standard error. */
  readonly targets: Map<string, number>;
}

const installed = new Map<NodeJS.Signals, Installed>();

/** Installs the handler, or joins the one that is there. Call what it returns once, when the engine is closed. */
export function installSignalDump({ signal, file }: SignalDump, text: () => string): () => void {
  const target = file ?? '';
  let entry = installed.get(signal);
  if (entry === undefined) {
    const targets = new Map<string, number>();
    entry = { targets, listener: () => dump(signal, targets, text) };
    installed.set(signal, entry);
    process.on(signal, entry.listener);
  }
  const { targets, listener } = entry;
  targets.set(target, (targets.get(target) ?? 0) + 1);
  let removed = false;
  return () => {
    if (removed) return;
    removed = true;
    const left = (targets.get(target) ?? 1) - 1;
    if (left > 0) targets.set(target, left);
    else targets.delete(target);
    if (targets.size > 0) return;
    process.off(signal, listener);
    installed.delete(signal);
  };
}

/** A dump must not become a second fault: a place that cannot be written is told to the others, and ends nothing. */
function dump(signal: string, targets: ReadonlyMap<string, number>, text: () => string): void {
  let message = `tidemark: ${signal}, process ${process.pid}, ${new Date().toISOString()}\n${text()}\n`;
  let toStandardError = targets.has('');
  for (const file of targets.keys()) {
    if (file === '') continue;
    try {
      appendFileSync(file, message, { mode: 0o600 });
    } catch (error) {
      toStandardError = true;
      message += `tidemark: the dump could not be written to ${file}: ${(error as Error).message}\n`;
    }
  }
  if (toStandardError) writeStandardError(message);
}

/** Past the stream, so that a dump is out at once; what a full pipe does not take goes through the stream. */
function writeStandardError(message: string): void {
  const bytes = Buffer.from(message);
  let at = 0;
  try {
    while (at < bytes.length) at += writeSync(2, bytes, at);
  } catch (error) {
    // Nobody reads a closed pipe, and a closed descriptor is the app's choice.
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') process.stderr.write(bytes.subarray(at));
  }
}
