// A pinned Python wheel, fetched by pip without dependencies, checked, and unpacked into a folder that is complete or absent.

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

/** Written last into the unpacked folder: the hash of the wheel that it holds. */
const MARK = '.complete';

/**
 * The folder with the wheel's contents; fetches only when `target` does not hold this very wheel.
 * @param {{package: string, version: string, platform: string, file: string, sha256: string}} pin
 */
export function unpackWheel(pin, target, log) {
  if (holds(target, pin)) return target;
  const work = mkdtempSync(join(tmpdir(), 'tidemark-wheel-'));
  try {
    log(`fetching ${pin.package} ${pin.version} (${pin.platform})`);
    download(pin, work);
    const wheel = join(work, pin.file);
    if (!existsSync(wheel)) throw new Error(`pip fetched another file than ${pin.file}`);
    const sha256 = createHash('sha256').update(readFileSync(wheel)).digest('hex');
    if (sha256 !== pin.sha256) throw new Error(`${pin.file} has SHA-256 ${sha256}, pinned is ${pin.sha256}`);

    // Beside the target, so that the rename stays on one file system.
    mkdirSync(dirname(target), { recursive: true });
    const fresh = mkdtempSync(`${target}.tmp-`);
    try {
      execFileSync('python3', ['-m', 'zipfile', '-e', wheel, fresh], { stdio: ['ignore', 'ignore', 'pipe'] });
      writeFileSync(join(fresh, MARK), `${pin.sha256}\n`);
      rmSync(target, { recursive: true, force: true });
      renameSync(fresh, target);
    } catch (error) {
      rmSync(fresh, { recursive: true, force: true });
      // Another install of the same package may have been faster.
      if (!holds(target, pin)) throw error;
    }
    return target;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function holds(target, pin) {
  const mark = join(target, MARK);
  return existsSync(mark) && readFileSync(mark, 'utf8').trim() === pin.sha256;
}

function download(pin, into) {
  const args = ['-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--disable-pip-version-check', '--quiet'];
  // The platform is named so that the file is the pinned one whatever this Python would choose.
  args.push('--platform', pin.platform, '--implementation', 'py', '--abi', 'none', '--dest', into, `${pin.package}==${pin.version}`);
  try {
    execFileSync('python3', args, { stdio: ['ignore', 'ignore', 'pipe'], timeout: 600_000 });
  } catch (error) {
    const text = String(error.stderr ?? '').trim();
    const last = text.split('\n').filter(Boolean).at(-1);
    throw new Error(error.code === 'ENOENT' ? 'python3 was not found' : (last ?? error.message));
  }
}
