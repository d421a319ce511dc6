/**
 * Small file systems for tests of a disk that is full or read-only. Mounting needs rights that not every machine gives: a
 * test that gets a reason instead of a disk skips with it.
 */
import { execFileSync } from 'node:child_process';
import { closeSync, ftruncateSync, mkdtempSync, openSync, rmdirSync, rmSync, writeSync } from 'node:fs';
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

export interface FreezableDisk {
  readonly path: string;
  /** From now on every write waits, for as long as it takes. */
  freeze(): void;
  thaw(): void;
}

const frozen = new Set<string>();

// Hooks run last-registered first: thawed before it is unmounted, and before threads that wait for it are waited for.
afterEach(() => {
  for (const path of frozen) thaw(path);
});

function thaw(path: string): void {
  if (frozen.delete(path)) execFileSync('fsfreeze', ['-u', path], { stdio: 'pipe' });
}

/** A disk that can be made to stand still, gone after the test; or why there is none. */
export function freezableDisk(megabytes = 64): FreezableDisk | { reason: string } {
  if (process.platform !== 'linux') return { reason: 'no fsfreeze on this platform' };
  const path = mkdtempSync(join(tmpdir(), 'tidemark-disk-'));
  const image = `${path}.img`;
  try {
    const fd = openSync(image, 'w');
    ftruncateSync(fd, megabytes * 1024 * 1024);
    closeSync(fd);
    execFileSync('mkfs.ext4', ['-q', image], { stdio: 'pipe' });
    execFileSync('mount', ['-o', 'loop', image, path], { stdio: 'pipe' });
  } catch (error) {
    rmdirSync(path);
    return { reason: `mounting is not permitted here: ${String((error as { stderr?: Buffer }).stderr ?? error).trim()}` };
  } finally {
    // The mount keeps it.
    rmSync(image, { force: true });
  }
  mounts.push(path);
  const freeze = () => {
    execFileSync('fsfreeze', ['-f', path], { stdio: 'pipe' });
    frozen.add(path);
  };
  return { path, freeze, thaw: () => thaw(path) };
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
