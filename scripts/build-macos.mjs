// `npm run build:macos [-- --macos 14|15|26]`: compiles and links both addons for arm64 macOS with zig against the pinned mlx-metal wheel,
// and checks where each symbol that they leave open comes from.
//
// It shows that the code compiles and links for macOS and that libmlx.dylib has all it asks for. It shows nothing about running, and
// the files are not for use: zig links its own libc++ into them. On a Mac, `npm ci` builds the addons with the system's compiler.

import { execFile } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { checkUndefined, readMachO } from './mach-o.mjs';
import { unpackWheel } from './wheel.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const vendor = join(root, 'vendor');
const require = createRequire(import.meta.url);
const packageFolder = (name) => dirname(require.resolve(`${name}/package.json`));
const pins = JSON.parse(readFileSync(new URL('mlx-pins.json', import.meta.url), 'utf8'));
const log = (text) => console.log(`build:macos: ${text}`);

/** Sources and definitions of both addons, read from CMakeLists.txt so that this build cannot drift from the real one. */
export function addonsOf(cmake, list = (folder) => readdirSync(join(root, folder))) {
  const core = cmake
    .match(/tidemark_addon\(tidemark_core ([^)]*)\)/)?.[1]
    .trim()
    .split(/\s+/);
  const glob = cmake.match(/file\(GLOB MLX_SOURCES CONFIGURE_DEPENDS (\S+)\/\*\.cc\)/)?.[1];
  const common = cmake
    .match(/add_compile_definitions\(([^)]*)\)/)?.[1]
    .trim()
    .split(/\s+/);
  const definitions = (target) =>
    cmake
      .match(new RegExp(`target_compile_definitions\\(${target} PRIVATE ([^)]*)\\)`))?.[1]
      .trim()
      .split(/\s+/);
  const standard = cmake.match(/CMAKE_CXX_STANDARD (\d+)/)?.[1];
  const found = { core, glob, common, ofCore: definitions('tidemark_core'), ofMlx: definitions('tidemark_mlx_objects'), standard };
  for (const [name, value] of Object.entries(found))
    if (value === undefined) throw new Error(`CMakeLists.txt no longer says what ${name} is where this script looks`);
  const mlx = list(glob)
    .filter((name) => name.endsWith('.cc'))
    .sort()
    .map((name) => `${glob}/${name}`);
  return [
    { name: 'tidemark_core', sources: core, definitions: [...common, ...found.ofCore], standard, usesMlx: false },
    { name: 'tidemark_mlx', sources: mlx, definitions: [...common, ...found.ofMlx], standard, usesMlx: true },
  ];
}

/** Names of the functions of Node-API up to the version that the addons ask for. */
export function nodeApiNames(definitions) {
  const version = definitions.map((text) => text.match(/^NAPI_VERSION=(\d+)$/)?.[1]).find(Boolean);
  const { js_native_api_symbols, node_api_symbols } = require('node-api-headers').symbols[`v${version}`];
  return new Set([...js_native_api_symbols, ...node_api_symbols]);
}

function findZig() {
  const pin = pins.zig[`${process.platform}-${process.arch}`];
  if (pin === undefined) throw new Error(`no zig is pinned for ${process.platform} ${process.arch}; this runs on ${Object.keys(pins.zig).join(', ')}`);
  const zig = join(unpackWheel(pin, join(vendor, `zig-${pin.version}`), log), 'ziglang/zig');
  chmodSync(zig, 0o755); // zip archives are unpacked without it
  return zig;
}

async function main(args) {
  const at = args.indexOf('--macos');
  const macos = at < 0 ? '14' : args[at + 1];
  const pin = pins.wheels[`metal-macos-${macos}`];
  if (pin === undefined) throw new Error(`--macos must be one of 14, 15 and 26, it is '${macos}'`);
  const zig = findZig();
  const mlxRoot = join(unpackWheel({ ...pin, version: pins.version }, join(vendor, `mlx-${pins.version}-metal-macos-${macos}`), log), 'mlx');
  const out = join(root, `build/macos-${macos}`);
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out, { recursive: true });
  // zig compiles its libc++ for the target once and keeps it there.
  const env = { ...process.env, ZIG_GLOBAL_CACHE_DIR: join(vendor, 'zig-cache'), ZIG_LOCAL_CACHE_DIR: join(vendor, 'zig-cache') };
  const run = async (args) => {
    try {
      await promisify(execFile)(zig, args, { cwd: root, env, maxBuffer: 1 << 26 });
    } catch (error) {
      throw new Error(
        `zig ${args.slice(0, 3).join(' ')} … ${args.at(-1)} failed:\n${String(error.stderr ?? error.message)
          .trim()
          .split('\n')
          .slice(-40)
          .join('\n')}`,
      );
    }
  };
  const target = ['-target', `aarch64-macos.${macos}.0`];
  const mlx = readMachO(readFileSync(join(mlxRoot, 'lib/libmlx.dylib')));
  log(`${mlx.id} of ${pin.file}: ${mlx.exported.size} exported symbols`);
  const addons = addonsOf(readFileSync(join(root, 'CMakeLists.txt'), 'utf8'));
  const problems = [];
  for (const addon of addons) {
    const includes = [require('node-api-headers').include_dir, addon.usesMlx ? join(mlxRoot, 'include') : packageFolder('node-addon-api')];
    const flags = [`-std=c++${addon.standard}`, '-O2', '-fPIC', '-fvisibility=hidden', ...addon.definitions.map((text) => `-D${text}`)];
    flags.push(...includes.flatMap((folder) => ['-isystem', folder]), `-I${join(root, 'native')}`);
    const objects = addon.sources.map((source) => join(out, `${addon.name}-${basename(source, '.cc')}.o`));
    const todo = addon.sources.entries();
    const compile = async () => {
      for (const [k, source] of todo) await run(['c++', ...target, ...flags, '-c', '-o', objects[k], source]);
    };
    await Promise.all(Array.from({ length: Math.max(1, availableParallelism() - 1) }, compile));
    const file = join(out, `${addon.name}.node`);
    const libraries = addon.usesMlx ? [`-L${join(mlxRoot, 'lib')}`, '-lmlx', '-Wl,-rpath,@loader_path/site/mlx/lib'] : [];
    await run(['c++', ...target, '-shared', '-o', file, ...objects, ...libraries, '-Wl,-undefined,dynamic_lookup']);
    const image = readMachO(readFileSync(file));
    const nodeApi = nodeApiNames(addon.definitions);
    const checked = checkUndefined(image, { nodeApi, mlx: addon.usesMlx ? mlx : null });
    problems.push(...checked.problems.map((problem) => `${addon.name}.node: ${problem}`));
    const { nodeApi: api, system, mlx: ofMlx } = checked.counts;
    log(`${relative(root, file)}: ${addon.sources.length} sources, ${statSync(file).size} bytes, needs ${image.libraries.join(', ')}`);
    log(`  ${image.undefined.length} undefined symbols: ${api} of Node-API, ${system} of the system, ${ofMlx} of libmlx, ${checked.problems.length} of nobody`);
    if (!['_napi_register_module_v1', '_node_api_module_get_api_version_v1'].every((name) => image.exported.has(name))) {
      problems.push(`${addon.name}.node does not export the entry points of a Node-API addon`);
    }
  }
  for (const problem of problems) log(`FAIL ${problem}`);
  log(problems.length === 0 ? `PASS both addons compile and link for arm64 macOS ${macos} (not run: this takes a Mac)` : `FAIL ${problems.length} problems`);
  return problems.length === 0 ? 0 : 1;
}

if (process.argv[1] !== undefined && existsSync(process.argv[1]) && fileURLToPath(import.meta.url) === process.argv[1]) {
  try {
    process.exitCode = await main(process.argv.slice(2));
  } catch (error) {
    log(`FAIL ${error.message}`);
    process.exitCode = 1;
  }
}
