// Runs at `npm ci` and at a consumer's `npm install`: finds MLX, builds the native addons, and in a checkout compiles the TypeScript.
//
// What cannot be had is said in one line each and does not fail the install: without MLX, stores and locks work and createEngine() rejects with
// MLX_UNAVAILABLE; without a compiler there is no file lock either. Set TIDEMARK_MLX=cuda for the CUDA 13 backend, MLX_ROOT for an MLX of your own.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { findMlx } from './find-mlx.mjs';
import { buildAddons, expectedAddons, inputsHash, missingTool } from './native-build.mjs';
import { unpackWheel } from './wheel.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const vendor = join(root, 'vendor');
const record = join(root, 'build/mlx-build.json');
const pins = JSON.parse(readFileSync(new URL('mlx-pins.json', import.meta.url), 'utf8'));
const notes = [];
const log = (text) => console.log(`tidemark: ${text}`);

/** OpenBLAS for the CPU wheel, whose own BLAS is the reference one (15 to 30 times slower). Null where there is none to be had. */
function findOpenblas(mlx) {
  if (mlx === null || mlx.backend !== 'cpu' || process.platform !== 'linux') return null;
  const pin = pins.openblas[`linux-${process.arch}`];
  if (pin === undefined) {
    notes.push(`No OpenBLAS is pinned for Linux ${process.arch}: MLX uses its reference BLAS, which is slow.`);
    return null;
  }
  try {
    const folder = unpackWheel(pin, join(vendor, `openblas-${pin.version}`), log);
    return join(folder, 'scipy_openblas32/lib/libscipy_openblas.so');
  } catch (error) {
    notes.push(`${pin.package} ${pin.version} could not be had (${error.message}): MLX uses its reference BLAS, which is slow.`);
    return null;
  }
}

function readRecord() {
  try {
    return JSON.parse(readFileSync(record, 'utf8'));
  } catch {
    return null; // never built, or cut short: build
  }
}

function writeRecord(content) {
  mkdirSync(join(root, 'build'), { recursive: true });
  writeFileSync(record, `${JSON.stringify(content, null, 2)}\n`);
}

/** Builds unless the same inputs were built before. Falls back to the core addon alone. */
function build(mlx, openblas) {
  const options = { mlxRoot: mlx?.root ?? null, openblas };
  const inputs = inputsHash(options);
  const content = {
    inputs,
    mlx,
    blas:
      mlx === null
        ? null
        : mlx.backend === 'metal'
          ? { library: 'accelerate' }
          : openblas === null
            ? { library: 'reference' }
            : { library: 'openblas', path: openblas },
    notes,
  };
  if (readRecord()?.inputs === inputs && expectedAddons(options).every(existsSync)) {
    writeRecord(content);
    return;
  }
  rmSync(record, { force: true });
  try {
    buildAddons(options, log);
    writeRecord(content);
  } catch (error) {
    if (mlx === null) throw error;
    console.error(`tidemark: ${error.message}`);
    notes.push('The MLX addon could not be built (see the output of the install script).');
    build(null, null);
  }
}

function buildNative() {
  const tool = missingTool();
  if (tool !== null) {
    notes.push(`${tool} was not found: no native addon was built, so there is no MLX and no file lock.`);
    writeRecord({ inputs: null, mlx: null, blas: null, notes });
    return;
  }
  const mlx = findMlx({ pins, vendor, notes, log });
  try {
    build(mlx, findOpenblas(mlx));
  } catch (error) {
    console.error(`tidemark: ${error.message}`);
    notes.push('No native addon could be built (see the output of the install script).');
    writeRecord({ inputs: null, mlx: null, blas: null, notes });
  }
}

/** Only in a checkout: a published package has dist/ and no src/. */
function compileTypescript() {
  if (!existsSync(join(root, 'src'))) return 0;
  let compiler;
  try {
    compiler = join(createRequire(import.meta.url).resolve('typescript/package.json'), '../bin/tsc');
  } catch {
    log('TypeScript is not installed; dist/ was not built');
    return 0;
  }
  return spawnSync(process.execPath, [compiler, '-p', root], { stdio: 'inherit' }).status ?? 1;
}

buildNative();
for (const note of notes) log(note);
const built = readRecord();
log(
  built?.mlx
    ? `MLX ${built.mlx.version} (${built.mlx.backend}) from ${built.mlx.source}, BLAS: ${built.blas.library}`
    : 'no MLX: stores and locks work, createEngine() rejects with MLX_UNAVAILABLE',
);
process.exitCode = compileTypescript();
