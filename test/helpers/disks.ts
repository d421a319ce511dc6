/**
 * Small file systems for tests of a disk that is full or read-only. Mounting needs rights that not every machine gives: a
 * test that gets a reason instead of a disk skips with it.
 */
import { execFileSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmdirSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach } from 'vitest';

export interface Disk {
  /** The mount point. */
  readonly path: string;
  /** `mount -o remount,…`. */
  remount(options: string): void;
}

const mounts: string[] = [];

afterEach(() => {
  for (const mount of mounts.splice(0)) {
    // Lazily: a thread of the test that failed may still have a file open.
    execFileSync('umount', ['-l', mount]);
    rmdirSync(mount);
  }
});

/** A tmpfs of `megabytes`, unmounted after the test; or why there is none. */
export function smallDisk(megabytes = 8): Disk | { reason: string } {
  if (process.platform !== 'linux') return { reason: 'no tmpfs on this platform' };
  const path = mkdtempSync(join(tmpdir(), 'tidemark-disk-'));
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m,mode=0700`, 'tmpfs', path], { stdio: 'pipe' });
  } catch (error) {
    rmdirSync(path);
    return { reason: `mounting is not permitted here: ${String((error as { stderr?: Buffer }).stderr ?? error).trim()}` };
  }
  mounts.push(path);
  return { path, remount: (options) => execFileSync('mount', ['-o', `remount,${options}`, path], { stdio: 'pipe' }) };
}

/** Writes a file until nothing more goes onto its disk. */
export function fillDisk(path: string): void {
  const fd = openSync(path, 'w');
  try {
    for (const size of [256 * 1024, 4096, 1]) while (wrote(fd, size));
  } finally {
    closeSync(fd);
  }
}

function wrote(fd: number, size: number): boolean {
  try {
    return writeSync(fd, Buffer.alloc(size)) === size;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    return false;
  }
}
