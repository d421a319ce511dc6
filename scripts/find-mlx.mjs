// Where MLX comes from, in this order: MLX_ROOT, an installed Python package, the pinned wheel. Nothing is built from source.

import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { release } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { unpackWheel } from './wheel.mjs';

/**
 * @returns {{root: string, version: string, backend: string, source: string} | null} null: `notes` says why
 */
export function findMlx({ pins, vendor, notes, log }) {
  const { platform, arch } = process;
  const supported = (platform === 'linux' && (arch === 'x64' || arch === 'arm64')) || (platform === 'darwin' && arch === 'arm64');
  if (!supported) {
    notes.push(`MLX does not run on ${platform} ${arch}; stores and locks do.`);
    return null;
  }
  const wanted = process.env.TIDEMARK_MLX || (platform === 'darwin' ? 'metal' : 'cpu');
  if (!['cpu', 'cuda', 'metal'].includes(wanted)) {
    notes.push(`TIDEMARK_MLX must be cpu, cuda or metal, it is '${wanted}'.`);
    return null;
  }
  return fromRoot(pins, notes) ?? fromPython(pins, wanted, notes, log) ?? fromWheel(pins, wanted, vendor, notes, log);
}

/** What lies in a folder that should be an MLX package: its problem, or version and backend. */
export function inspect(root, version) {
  const library = ['libmlx.so', 'libmlx.dylib'].map((name) => join(root, 'lib', name)).find(existsSync);
  if (library === undefined) return { problem: 'has no lib/libmlx' };
  const header = join(root, 'include/mlx/version.h');
  if (!existsSync(header)) return { problem: 'has no include/mlx/version.h' };
  const text = readFileSync(header, 'utf8');
  const part = (name) => text.match(new RegExp(`MLX_VERSION_${name} (\\d+)`))?.[1];
  const found = `${part('MAJOR')}.${part('MINOR')}.${part('PATCH')}`;
  if (found !== version) return { problem: `is MLX ${found}, ${version} is needed` };
  return { version: found, backend: backendOf(root) };
}

function backendOf(root) {
  if (existsSync(join(root, 'lib/mlx.metallib'))) return 'metal';
  const beside = readdirSync(dirname(root));
  return beside.some((name) => /^mlx_cuda_?\d*-.*\.dist-info$/.test(name)) || existsSync(join(root, 'include/cccl')) ? 'cuda' : 'cpu';
}

function fromRoot(pins, notes) {
  const given = process.env.MLX_ROOT;
  if (!given) return null;
  const root = resolve(given);
  const found = inspect(root, pins.version);
  if (found.problem === undefined) return { root, ...found, source: 'MLX_ROOT' };
  notes.push(`MLX_ROOT (${root}) ${found.problem}, so it was not used.`);
  return null;
}

/** The `mlx` package of the python3 on PATH, whose libmlx may come from any of its backend packages. */
function fromPython(pins, wanted, notes, log) {
  const script = 'import importlib.util as u; s = u.find_spec("mlx"); print("\\n".join(s.submodule_search_locations or []) if s else "")';
  let places;
  try {
    places = execFileSync('python3', ['-c', script], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'], cwd: '/' })
      .split('\n')
      .filter(Boolean);
  } catch {
    return null; // no python3: said by the wheel step, which needs it
  }
  for (const root of places) {
    const found = inspect(root, pins.version);
    if (found.problem !== undefined) {
      // A folder without a libmlx is a leftover; another version is worth a word.
      if (found.problem.startsWith('is MLX')) notes.push(`The installed Python package (${root}) ${found.problem}; the pinned wheel is used instead.`);
    } else if (found.backend !== wanted) {
      log(`the installed Python package has the ${found.backend} backend, ${wanted} is wanted`);
    } else {
      return { root, ...found, source: 'Python package' };
    }
  }
  return null;
}

function fromWheel(pins, wanted, vendor, notes, log) {
  const key = wanted === 'metal' ? metalKey() : `${wanted}-${process.platform}-${process.arch}`;
  const pin = pins.wheels[key];
  if (pin === undefined) {
    notes.push(`There is no MLX ${pins.version} wheel for ${key}.`);
    return null;
  }
  const old = process.platform === 'linux' ? glibcProblem() : null;
  if (old !== null) {
    notes.push(old);
    return null;
  }
  try {
    const folder = unpackWheel({ ...pin, version: pins.version }, join(vendor, `mlx-${pins.version}-${wanted}`), log);
    return { root: join(folder, 'mlx'), version: pins.version, backend: wanted, source: 'wheel' };
  } catch (error) {
    notes.push(`${pin.package} ${pins.version} could not be had: ${error.message}.`);
    return null;
  }
}

/** The newest wheel that this macOS can run (Darwin 23 is macOS 14, 24 is 15, 25 is 26). */
function metalKey() {
  const darwin = Number(release().split('.')[0]);
  if (darwin >= 25) return 'metal-macos-26';
  return darwin === 24 ? 'metal-macos-15' : darwin === 23 ? 'metal-macos-14' : `metal (Darwin ${darwin}; macOS 14 or later is needed)`;
}

function glibcProblem() {
  const version = process.report?.getReport().header.glibcVersionRuntime;
  if (version === undefined) return 'The MLX wheels need glibc (this Node runs on another C library).';
  const [major, minor] = version.split('.').map(Number);
  return major > 2 || (major === 2 && minor >= 35) ? null : `The MLX wheels need glibc 2.35, here is ${version}.`;
}
