/**
 * Temporary folders that go away after the test that asked for them.
 */
import { chmodSync, lstatSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach } from 'vitest';

const perTest: string[] = [];
const perFile: string[] = [];

/** A fresh folder, removed after the current test. Call it inside a test or `beforeEach`. */
export function tempDir(label = 'test'): string {
  const dir = mkdtempSync(join(tmpdir(), `tidemark-${label}-`));
  perTest.push(dir);
  return dir;
}

/** A fresh folder, removed after the file's last test. */
export function tempDirForFile(label = 'test'): string {
  const dir = mkdtempSync(join(tmpdir(), `tidemark-${label}-`));
  perFile.push(dir);
  return dir;
}

/** Removes a folder, also when a test took its write permission away. */
export function removeTree(dir: string): void {
  makeWritable(dir);
  rmSync(dir, { recursive: true, force: true });
}

function makeWritable(path: string): void {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  if (!stat?.isDirectory()) return;
  if ((stat.mode & 0o700) !== 0o700) chmodSync(path, 0o700);
  for (const entry of readdirSync(path, { withFileTypes: true })) if (entry.isDirectory()) makeWritable(join(path, entry.name));
}

/** Every file under a folder, as sorted paths relative to it. Folders end in '/'. */
export function listTree(dir: string): string[] {
  const out: string[] = [];
  const walk = (at: string, prefix: string): void => {
    for (const entry of readdirSync(at, { withFileTypes: true })) {
      const name = prefix + entry.name;
      if (entry.isDirectory()) {
        out.push(`${name}/`);
        walk(join(at, entry.name), `${name}/`);
      } else out.push(name);
    }
  };
  walk(dir, '');
  return out.sort();
}

afterEach(() => {
  for (const dir of perTest.splice(0)) removeTree(dir);
});
afterAll(() => {
  for (const dir of perFile.splice(0)) removeTree(dir);
});
