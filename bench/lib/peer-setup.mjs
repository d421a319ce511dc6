/**
 * Sets mlx-lm up as the peer of the benchmarks: pinned packages by pip in vendor/bench-peer (git-ignored), on first use.
 *
 * The wheel's own BLAS is the reference one. So that the comparison is fair as well, a small library is compiled that
 * offers OpenBLAS, the one our addon uses, under the names libmlx asks for; preloaded, libmlx finds it first.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = join(root, 'vendor/bench-peer');
const packages = [process.platform === 'linux' ? 'mlx[cpu]==0.32.4' : 'mlx==0.32.4', 'mlx-lm==0.32.2'];

/** The folder to put on PYTHONPATH. Installs when it does not hold these very packages. */
export function peerPackages(log) {
  const site = join(folder, 'site');
  const mark = join(site, '.complete');
  const wanted = packages.join(' ');
  if (existsSync(mark) && readFileSync(mark, 'utf8').trim() === wanted) return site;
  log(`installing ${wanted} into vendor/bench-peer (once)`);
  mkdirSync(folder, { recursive: true });
  const fresh = mkdtempSync(join(folder, 'site.tmp-'));
  try {
    const args = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-warn-script-location', '--only-binary=:all:', '--target', fresh];
    execFileSync('python3', [...args, ...packages], { stdio: ['ignore', 'ignore', 'pipe'], timeout: 900_000, encoding: 'utf8' });
    writeFileSync(join(fresh, '.complete'), `${wanted}\n`);
    rmSync(site, { recursive: true, force: true });
    renameSync(fresh, site);
    return site;
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true });
    throw new Error(
      `The peer of this benchmark, mlx-lm, could not be installed: ${reason(error)}\n` +
        `It needs python3 with pip and a package index that pip can reach. By hand: python3 -m pip install --target '${site}' '${packages.join("' '")}', then write the line ${wanted} into '${mark}'.`,
    );
  }
}

/** The library to preload, linked to the OpenBLAS of our own build; `{ path: null, openblas: null, why }` where there is none. */
export function openblasPreload(log) {
  if (process.platform !== 'linux')
    return { path: null, openblas: null, why: `MLX uses the system's BLAS on ${process.platform}: peer and engine have the same one already` };
  const record = join(root, 'build/mlx-build.json');
  const openblas = existsSync(record) ? JSON.parse(readFileSync(record, 'utf8')).blas?.path : undefined;
  if (openblas === undefined || !existsSync(openblas)) return { path: null, openblas: null, why: 'this build of the addon has no OpenBLAS' };
  const source = join(root, 'native/mlx/blas_shim.c');
  const path = join(folder, 'libcblas_openblas.so');
  const mark = `${path}.from`;
  const from = `${openblas}\n${readFileSync(source, 'utf8')}`;
  if (existsSync(path) && existsSync(mark) && readFileSync(mark, 'utf8') === from) return { path, openblas, why: '' };
  log('compiling the library that gives mlx-lm our OpenBLAS');
  mkdirSync(folder, { recursive: true });
  try {
    const compiler = process.env.CC ?? 'cc';
    execFileSync(compiler, ['-shared', '-fPIC', '-O2', '-o', path, source, openblas, `-Wl,-rpath,${dirname(openblas)}`], {
      stdio: ['ignore', 'ignore', 'pipe'],
    });
  } catch (error) {
    throw new Error(`The library that gives mlx-lm our OpenBLAS could not be compiled: ${reason(error)}`);
  }
  writeFileSync(mark, from);
  return { path, openblas, why: '' };
}

function reason(error) {
  if (error.code === 'ENOENT') return `${error.path ?? 'the program'} was not found`;
  const lines = String(error.stderr ?? '')
    .trim()
    .split('\n')
    .filter(Boolean);
  return lines.at(-1) ?? error.message;
}
