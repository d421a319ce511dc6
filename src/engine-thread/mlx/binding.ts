/**
 * Loads tidemark_mlx.node. Every thread that works with tensors loads it for itself; the main thread loads it too, and leaves it idle, so that
 * the library is never unloaded while another thread's native threads may run its code.
 */

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { isMainThread } from 'node:worker_threads';
import { type ErrorCode, StreamAffinityError, TidemarkError } from '../../shared/errors.ts';
import { loadNativeCore } from '../../shared/native-core.ts';
import type { NativeMlx } from './native-mlx.ts';

/** What the install script found and built (build/mlx-build.json). */
export interface MlxBuild {
  mlx: { root: string; version: string; backend: string; source: string } | null;
  blas: { library: string; path?: string } | null;
  /** Why something could not be had, for people. */
  notes: string[];
}

const root = new URL('../../../', import.meta.url);

/** The install script's record, or null when it never ran. */
export function readMlxBuild(): MlxBuild | null {
  try {
    return JSON.parse(readFileSync(new URL('build/mlx-build.json', root), 'utf8')) as MlxBuild;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

function assertPlatform(): void {
  const { platform, arch } = process;
  if ((platform === 'linux' && (arch === 'x64' || arch === 'arm64')) || (platform === 'darwin' && arch === 'arm64')) return;
  throw new TidemarkError(
    'PLATFORM_UNSUPPORTED',
    `MLX runs on Linux (x64, arm64) and on Apple Silicon; this is ${platform} ${arch}. The stores and locks work here.`,
    {
      details: { platform, arch },
    },
  );
}

function unavailable(why: string, cause?: unknown): TidemarkError {
  const notes = readMlxBuild()?.notes ?? [];
  const found = notes.length > 0 ? ` The install script said: ${notes.join(' ')}` : '';
  return new TidemarkError(
    'MLX_UNAVAILABLE',
    `${why}${found} Install Python 3 with pip, CMake and a C++20 compiler, or set MLX_ROOT to the mlx folder of an MLX 0.32.4 package, and run \`npm rebuild tidemark\` (in the repository: \`node scripts/install.mjs\`).`,
    { cause, details: { notes } },
  );
}

/** Makes errors of native code ours, so that they need no wrapping on each call. */
function makeError(code: string, message: string): Error {
  return code === 'STREAM_AFFINITY' ? new StreamAffinityError(message) : new TidemarkError(code as ErrorCode, message);
}

function open(): NativeMlx {
  assertPlatform();
  const plain = process.env.TIDEMARK_BLAS === 'reference' && existsSync(new URL('build/Release/tidemark_mlx_refblas.node', root));
  const file = fileURLToPath(new URL(`build/Release/${plain ? 'tidemark_mlx_refblas' : 'tidemark_mlx'}.node`, root));
  if (!existsSync(file)) throw unavailable('The MLX addon was not built.');
  let native: NativeMlx;
  try {
    native = createRequire(import.meta.url)(file) as NativeMlx;
  } catch (error) {
    throw unavailable(`The MLX addon could not be loaded: ${(error as Error).message}.`, error);
  }
  if (native.mlxVersion() !== native.builtVersion()) {
    throw unavailable(`The MLX library is version ${native.mlxVersion()}, the addon was built for ${native.builtVersion()}.`);
  }
  native.setErrorFactory(makeError);
  // The addon's own end-of-thread hook waits for its streams; death words of this thread must not wait with it.
  loadNativeCore()?.deathWordsFirst();
  // A main thread has no such hook at process.exit. It should not use MLX at all; if it did, wait here, or BLAS threads hang the exit.
  if (isMainThread) process.on('exit', () => native.drainThread());
  return native;
}

let loaded: NativeMlx | undefined;

/** The addon of this thread. Throws MLX_UNAVAILABLE or PLATFORM_UNSUPPORTED with what to do. */
export function mlx(): NativeMlx {
  loaded ??= open();
  return loaded;
}
