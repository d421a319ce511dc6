// Compiles the addons with cmake-js. The Node-API headers come from the npm package node-api-headers: nothing is downloaded.

import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const packageFolder = (name) => dirname(createRequire(import.meta.url).resolve(`${name}/package.json`));

/** The tool that is missing for a build, or null. */
export function missingTool() {
  for (const [tool, hint] of [
    ['cmake', 'CMake'],
    ['c++', 'a C++20 compiler'],
  ]) {
    const compiler = tool === 'c++' ? (process.env.CXX ?? tool) : tool;
    if (spawnSync(compiler, ['--version'], { stdio: 'ignore' }).error !== undefined) return hint;
  }
  return null;
}

/** Changes when anything that goes into the addons does. */
export function inputsHash(options) {
  const hash = createHash('sha256').update(JSON.stringify({ options, arch: process.arch, platform: process.platform }));
  const files = ['CMakeLists.txt', 'scripts/native-build.mjs'];
  for (const folder of ['native/core', 'native/mlx']) for (const name of readdirSync(join(root, folder)).sort()) files.push(join(folder, name));
  for (const file of files) hash.update(file).update(readFileSync(join(root, file)));
  return hash.digest('hex');
}

/** @param {{mlxRoot: string | null, openblas: string | null}} options */
export function expectedAddons(options) {
  const names = ['tidemark_core'];
  if (options.mlxRoot !== null) names.push('tidemark_mlx');
  if (options.openblas !== null) names.push('tidemark_mlx_refblas');
  return names.map((name) => join(root, 'build/Release', `${name}.node`));
}

export function buildAddons(options, log) {
  log(`building ${options.mlxRoot === null ? 'the core addon' : 'the addons'}`);
  const args = [join(packageFolder('cmake-js'), 'bin/cmake-js'), 'compile', '--out', join(root, 'build'), '--directory', root, '--parallel', '2'];
  args.push(`--CDMLX_ROOT=${options.mlxRoot ?? ''}`, `--CDOPENBLAS_LIB=${options.openblas ?? ''}`);
  args.push(`--CDNODE_ADDON_API=${packageFolder('node-addon-api')}`);
  // A cache of another MLX, generator or checkout place would be half right.
  rmSync(join(root, 'build/CMakeCache.txt'), { force: true });
  for (const addon of expectedAddons({ mlxRoot: '', openblas: '' })) rmSync(addon, { force: true });
  const output = [];
  try {
    output.push(execFileSync(process.execPath, args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 1 << 28 }));
  } catch (error) {
    const text = `${error.stdout ?? ''}\n${error.stderr ?? ''}`.trim();
    throw new Error(`the build failed:\n${text.split('\n').slice(-40).join('\n')}`);
  }
  const missing = expectedAddons(options).filter((addon) => !existsSync(addon));
  if (missing.length > 0) throw new Error(`the build made no ${missing.join(', ')}:\n${output.join('\n').split('\n').slice(-20).join('\n')}`);
}
