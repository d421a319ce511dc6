/**
 * Leak checks: `watchLeaks()` at the top of a test file fails a test that leaves a thread, an open file, a child process
 * or a file lock behind. Counting is by the operating system where it tells (Linux), else by Node's own events.
 */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import type { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, expect } from 'vitest';
import { endChildren } from './child.ts';
import { endWorkers } from './worker.ts';

export interface LeakOptions {
  /** Native threads that may stay (MLX never ends its stream threads: two for each engine the test makes). Default 0. */
  nativeThreads?: number;
  /** How long leftovers may take to go. Default 3,000. */
  settleMs?: number;
  /** Open files whose path matches may stay. */
  ignoreFiles?: RegExp;
}

interface Snapshot {
  threads: number;
  files: Map<string, number>;
  children: number[];
}

const linux = process.platform === 'linux';
/** Files that the runtime opens when it wants to, never ours to close. */
const RUNTIME_FILES = /^\/(?:dev|proc|sys|usr|lib)\/|node_modules|\.node$|\.so(?:\.|$)/;

const workers = new Set<Worker>();
process.on('worker', (worker: Worker) => {
  workers.add(worker);
  worker.once('exit', () => workers.delete(worker));
});

function entries(path: string): string[] {
  try {
    return readdirSync(path);
  } catch (error) {
    // A thread or a descriptor may go between two look-ups.
    if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return [];
    throw error;
  }
}

function orNull(read: () => string): string | null {
  try {
    return read();
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return null;
    throw error;
  }
}

/** Threads of this process as the operating system counts them (Linux), else living Workers made by this thread. */
export function threadCount(): number {
  return linux ? entries('/proc/self/task').length : workers.size;
}

/** Regular files this process has open, path → descriptors. Empty where the system does not tell. */
export function openFiles(ignore: RegExp = RUNTIME_FILES): Map<string, number> {
  const files = new Map<string, number>();
  if (!linux) return files;
  for (const fd of entries('/proc/self/fd')) {
    const target = orNull(() => readlinkSync(`/proc/self/fd/${fd}`));
    if (target?.startsWith('/') && !ignore.test(target)) files.set(target, (files.get(target) ?? 0) + 1);
  }
  return files;
}

/** Process ids of living children. */
export function childProcesses(): number[] {
  if (!linux) return [];
  const pids = entries('/proc/self/task').flatMap((tid) => (orNull(() => readFileSync(`/proc/self/task/${tid}/children`, 'utf8')) ?? '').split(' '));
  return pids.filter((pid) => pid.trim() !== '').map(Number);
}

function snapshot(): Snapshot {
  return { threads: threadCount(), files: openFiles(), children: childProcesses() };
}

function leftovers(before: Snapshot, options: LeakOptions): string[] {
  const now = snapshot();
  const found: string[] = [];
  const extra = now.threads - before.threads;
  if (extra > (options.nativeThreads ?? 0)) found.push(`${extra} thread(s) more than before (allowed: ${options.nativeThreads ?? 0})`);
  if (workers.size > 0) found.push(`${workers.size} Worker(s) still running`);
  for (const [path, count] of now.files) {
    if (count > (before.files.get(path) ?? 0) && !options.ignoreFiles?.test(path)) found.push(`open file ${path}`);
  }
  for (const pid of now.children) if (!before.children.includes(pid)) found.push(`child process ${pid}`);
  return found;
}

/** The thread pool of libuv starts at its first use and then stays: start it before anything is counted. */
async function warmThreadPool(): Promise<void> {
  await Promise.all(Array.from({ length: 8 }, () => readdir('.')));
}

/** Registers the checks for every test of the calling file. */
export function watchLeaks(options: LeakOptions = {}): void {
  let before: Snapshot;
  beforeEach(async () => {
    await warmThreadPool();
    before = snapshot();
  });
  // Hooks run last-registered first, so this one comes before the helpers' own clean-up: what they would end is no leak.
  afterEach(async () => {
    await Promise.all([endChildren(), endWorkers()]);
    const deadline = performance.now() + (options.settleMs ?? 3_000);
    let found = leftovers(before, options);
    while (found.length > 0 && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      found = leftovers(before, options);
    }
    expect(found, 'left behind by the test').toEqual([]);
  });
}
