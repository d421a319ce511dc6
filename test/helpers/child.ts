/**
 * Child processes with a bound: each has a time limit, and none outlives the test that started it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { afterEach } from 'vitest';

export interface ChildOptions {
  cwd?: string;
  env?: Record<string, string | undefined>;
  /** Written to standard input, which is then closed. Without it, standard input is empty. */
  input?: string;
  /** The child is killed after this. Default 30,000. */
  timeoutMs?: number;
}

export interface ChildResult {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
  timedOut: boolean;
}

const running = new Set<ChildProcess>();

function start(command: string, args: readonly string[], options: ChildOptions): ChildProcess {
  const child = spawn(command, args, {
    cwd: options.cwd,
    env: { ...process.env, ...options.env },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  running.add(child);
  child.once('exit', () => running.delete(child));
  // A child that has ended before reading its input is no error of the test; what it printed is.
  child.stdin!.on('error', ignoreBrokenPipe);
  if (options.input !== undefined) child.stdin!.end(options.input);
  return child;
}

function ignoreBrokenPipe(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE' && error.code !== 'ECONNRESET') throw error;
}

/** Runs a command to its end and gives back what it printed. */
export function run(command: string, args: readonly string[], options: ChildOptions = {}): Promise<ChildResult> {
  const child = start(command, args, options);
  if (options.input === undefined) child.stdin!.end();
  return finish(child, options.timeoutMs ?? 30_000);
}

/** `run` with this Node. */
export function runNode(args: readonly string[], options: ChildOptions = {}): Promise<ChildResult> {
  return run(process.execPath, args, options);
}

function finish(child: ChildProcess, timeoutMs: number): Promise<ChildResult> {
  return new Promise((resolve, reject) => {
    let stdout = '';
    let stderr = '';
    let timedOut = false;
    child.stdout!.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
    });
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    const timer = setTimeout(() => {
      timedOut = true;
      child.kill('SIGKILL');
    }, timeoutMs);
    child.once('error', (error) => {
      clearTimeout(timer);
      reject(error);
    });
    child.once('close', (code, signal) => {
      clearTimeout(timer);
      resolve({ code, signal, stdout, stderr, timedOut });
    });
  });
}

/** A child that speaks JSON lines on standard output. */
export interface LineChild {
  readonly process: ChildProcess;
  /** The next line, parsed. Rejects when the child ends first or the limit passes. */
  next(timeoutMs?: number): Promise<Record<string, unknown>>;
  /** Reads on until a line satisfies the test; lines read on the way are kept in `seen`. */
  until(test: (line: Record<string, unknown>) => boolean, timeoutMs?: number): Promise<Record<string, unknown>>;
  readonly seen: Record<string, unknown>[];
  readonly stderr: () => string;
  kill(signal?: NodeJS.Signals): void;
  /** Settles when the child has ended and its output is read. */
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
}

export function spawnLines(args: readonly string[], options: ChildOptions = {}): LineChild {
  const child = start(process.execPath, args, options);
  const queue: string[] = [];
  const seen: Record<string, unknown>[] = [];
  let stderr = '';
  let over = false;
  let wake: (() => void) | null = null;
  const poke = (): void => {
    wake?.();
    wake = null;
  };
  child.stderr!.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  createInterface({ input: child.stdout! }).on('line', (line) => {
    queue.push(line);
    poke();
  });
  const limit = setTimeout(() => child.kill('SIGKILL'), options.timeoutMs ?? 60_000);
  const ended = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve) => {
    child.once('close', (code, signal) => {
      clearTimeout(limit);
      over = true;
      poke();
      resolve({ code, signal });
    });
  });
  const next = async (timeoutMs = 30_000): Promise<Record<string, unknown>> => {
    const deadline = performance.now() + timeoutMs;
    for (;;) {
      const line = queue.shift();
      if (line !== undefined) {
        const value = JSON.parse(line) as Record<string, unknown>;
        seen.push(value);
        return value;
      }
      const left = deadline - performance.now();
      if (over) throw new Error(`the child ended before the line came; its standard error was:\n${stderr}`);
      if (left <= 0) throw new Error(`no line from the child within ${timeoutMs} ms; its standard error was:\n${stderr}`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  };
  return {
    process: child,
    next,
    until: async (test, timeoutMs = 30_000) => {
      const deadline = performance.now() + timeoutMs;
      for (;;) {
        const line = await next(Math.max(1, deadline - performance.now()));
        if (test(line)) return line;
      }
    },
    seen,
    stderr: () => stderr,
    kill: (signal = 'SIGKILL') => {
      child.kill(signal);
    },
    ended,
  };
}

/** Kills every child still running and waits until it is gone. */
export async function endChildren(): Promise<void> {
  await Promise.all(
    [...running].map(
      (child) =>
        new Promise<void>((resolve) => {
          if (child.exitCode !== null || child.signalCode !== null) return resolve();
          child.once('exit', () => resolve());
          child.kill('SIGKILL');
        }),
    ),
  );
}

afterEach(endChildren);
