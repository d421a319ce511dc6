/**
 * What `doctor` finds out about the cache folder: there, writable, room, file locks.
 */
import { closeSync, lstatSync, openSync, statfsSync, unlinkSync, writeSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { errnoOf } from '../shared/files.ts';
import { loadNativeCore } from '../shared/native-core.ts';
import type { Finding } from './doctor.ts';
import { formatBytes } from './units.ts';

export function checkCacheDir(dir: string): Finding[] {
  const name = 'cache folder';
  const stat = lstatSync(dir, { throwIfNoEntry: false });
  if (stat === undefined) {
    const parent = existingParent(dir);
    return [{ name, status: 'ok', found: `${dir} is not there yet; it is made at first use` }, freeSpace(parent)];
  }
  if (!stat.isDirectory()) {
    return [
      {
        name,
        status: 'warning',
        found: `${dir} is not a folder`,
        advice: 'engines work without a cache until it is removed, or another folder is named',
        details: { dir },
      },
    ];
  }
  return [writable(dir, name), freeSpace(dir), fileLock(dir)];
}

function existingParent(dir: string): string {
  let at = dirname(dir);
  while (lstatSync(at, { throwIfNoEntry: false }) === undefined) at = dirname(at);
  return at;
}

function testFile(dir: string): string {
  return join(dir, `.doctor-${process.pid}.tmp`);
}

function writable(dir: string, name: string): Finding {
  const path = testFile(dir);
  try {
    const fd = openSync(path, 'wx', 0o600);
    try {
      writeSync(fd, 'tidemark');
    } finally {
      closeSync(fd);
      unlinkSync(path);
    }
    return { name, status: 'ok', found: `${dir} is writable`, details: { dir } };
  } catch (error) {
    const errno = errnoOf(error);
    const advice = `nothing can be stored there (${errno}): engines read what is in it and go on; give write permission, make room, or name another folder`;
    return { name, status: 'warning', found: `${dir} cannot be written`, advice, details: { dir, errno } };
  }
}

function freeSpace(dir: string): Finding {
  const name = 'free space';
  try {
    const { bavail, bsize } = statfsSync(dir);
    const free = bavail * bsize;
    const low = free < 1e9;
    return {
      name,
      status: low ? 'warning' : 'ok',
      found: formatBytes(free),
      ...(low ? { advice: 'less than 1 GB is free: little will be stored, and old blocks go early' } : {}),
      details: { free },
    };
  } catch (error) {
    return { name, status: 'warning', found: `cannot be read (${errnoOf(error)})`, advice: 'only the configured limit of the cache holds' };
  }
}

/** On a file of its own: taking the folder's lock, if only for a moment, could make an engine that starts now read-only. */
function fileLock(dir: string): Finding {
  const name = 'file lock';
  const core = loadNativeCore();
  if (core === null) return { name, status: 'warning', found: 'not tested: the native core is not there' };
  const path = testFile(dir);
  const result = core.flockTry(path);
  if (typeof result === 'number') {
    core.flockRelease(result);
    unlinkSync(path);
    return { name, status: 'ok', found: 'the file system has flock' };
  }
  if (!result.unsupported) return { name, status: 'warning', found: `not tested (${result.message})` };
  return {
    name,
    status: 'warning',
    found: `the file system has no flock (${result.message})`,
    advice: 'the cache is read-only there; name a folder on a local disk',
  };
}
