// The symbol checker of `npm run build:macos`, on files made here. What must not happen: a symbol that nobody has passes, or one is taken
// for the system's because of its name. The build itself needs downloads of 150 MB and is not run by the tests.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ROOT } from '../helpers/paths.ts';

interface MachO {
  id: string | null;
  libraries: string[];
  exported: Set<string>;
  undefined: { name: string; from: string | null }[];
}
const { readMachO, checkUndefined } = (await import(join(ROOT, 'scripts/mach-o.mjs'))) as {
  readMachO(file: Buffer): MachO;
  checkUndefined(
    addon: MachO,
    known: { nodeApi: Set<string>; mlx: MachO | null },
  ): { counts: { nodeApi: number; system: number; mlx: number }; problems: string[] };
};
const { addonsOf, nodeApiNames } = (await import(join(ROOT, 'scripts/build-macos.mjs'))) as {
  addonsOf(cmake: string): { name: string; sources: string[]; definitions: string[]; standard: string; usesMlx: boolean }[];
  nodeApiNames(definitions: string[]): Set<string>;
};

const SYSTEM = '/usr/lib/libSystem.B.dylib';
const MLX = '@rpath/libmlx.dylib';
const [UNDEFINED, DEFINED, HIDDEN, LOCAL, DEBUG] = [0x01, 0x0f, 0x1f, 0x0e, 0x24];

/** A file with the load commands and the symbol table given; an ordinal of 0 or 254 names no library. */
function machO(parts: { id?: string; libraries?: string[]; symbols?: [name: string, type: number, ordinal?: number][]; cpu?: number }): Buffer {
  const { id, libraries = [], symbols = [], cpu = 0x0100000c } = parts;
  const library = (command: number, name: string) => {
    const bytes = Buffer.alloc(24 + Math.ceil((name.length + 1) / 8) * 8);
    bytes.writeUInt32LE(command, 0);
    bytes.writeUInt32LE(bytes.length, 4);
    bytes.writeUInt32LE(24, 8);
    bytes.write(name, 24);
    return bytes;
  };
  const commands = [...(id === undefined ? [] : [library(0xd, id)]), ...libraries.map((name, k) => library(k % 2 === 0 ? 0xc : 0x80000018, name))];
  const names = Buffer.from(`\0${symbols.map(([name]) => `${name}\0`).join('')}`);
  const symtab = Buffer.alloc(24);
  const start = 32 + [...commands, symtab].reduce((sum, { length }) => sum + length, 0);
  for (const [k, word] of [2, 24, start, symbols.length, start + symbols.length * 16, names.length].entries()) symtab.writeUInt32LE(word, k * 4);
  let at = 1;
  const table = symbols.map(([name, type, ordinal = 0]) => {
    const entry = Buffer.alloc(16);
    entry.writeUInt32LE(at, 0);
    entry[4] = type;
    entry.writeUInt16LE(ordinal << 8, 6);
    at += name.length + 1;
    return entry;
  });
  const header = Buffer.alloc(32);
  header.writeUInt32LE(0xfeedfacf, 0);
  header.writeUInt32LE(cpu, 4);
  header.writeUInt32LE(commands.length + 1, 16);
  return Buffer.concat([header, ...commands, symtab, ...table, names]);
}

const mlx = readMachO(
  machO({
    id: MLX,
    symbols: [
      ['_add', DEFINED],
      ['_inner', HIDDEN],
      ['_static', LOCAL],
      ['_line', DEBUG],
      ['_malloc', UNDEFINED, 0],
    ],
  }),
);
const nodeApi = new Set(['napi_create_object']);
const check = (symbols: [string, number, number][], known: { nodeApi: Set<string>; mlx: MachO | null } = { nodeApi, mlx }) =>
  checkUndefined(readMachO(machO({ libraries: [SYSTEM, MLX, '@rpath/libother.dylib'], symbols })), known);

describe('what a file says', () => {
  test('only global definitions are exports: no hidden, static or debugging symbol', () => {
    expect(mlx).toEqual({ id: MLX, libraries: [], exported: new Set(['_add']), undefined: [{ name: '_malloc', from: null }] });
  });

  test('a symbol is from the library that its ordinal names', () => {
    const file = machO({
      libraries: [SYSTEM, MLX],
      symbols: [
        ['_add', UNDEFINED, 2],
        ['_free', UNDEFINED, 1],
        ['_napi_x', UNDEFINED, 254],
      ],
    });
    expect(readMachO(file).undefined).toEqual([
      { name: '_add', from: MLX },
      { name: '_free', from: SYSTEM },
      { name: '_napi_x', from: null },
    ]);
  });

  test('the arm64 part of a universal file is read', () => {
    const slice = machO({ symbols: [['_here', DEFINED]] });
    const fat = Buffer.alloc(48);
    for (const [k, word] of [0xcafebabe, 2, 0x01000007, 0, 0, 0, 0, 0x0100000c, 0, 48, slice.length, 0].entries()) fat.writeUInt32BE(word, k * 4);
    expect(readMachO(Buffer.concat([fat, slice])).exported).toEqual(new Set(['_here']));
  });

  test.each<[string, Buffer, string]>([
    ['an ELF file', Buffer.from('\x7fELF'.padEnd(64, '\0'), 'latin1'), 'no 64-bit Mach-O'],
    ['another processor', machO({ cpu: 0x01000007 }), 'not for arm64'],
    ['an ordinal beyond the libraries', machO({ libraries: [SYSTEM], symbols: [['_add', UNDEFINED, 2]] }), 'bound to library 2'],
  ])('%s is refused', (_, file, message) => {
    expect(() => readMachO(file)).toThrow(message);
  });
});

describe('where symbols come from', () => {
  test("Node-API's, the system's and libmlx's pass", () => {
    expect(
      check([
        ['_napi_create_object', UNDEFINED, 254],
        ['_free', UNDEFINED, 1],
        ['_add', UNDEFINED, 2],
      ]),
    ).toEqual({ counts: { nodeApi: 1, system: 1, mlx: 1 }, problems: [] });
  });

  test.each<[string, [string, number, number]]>([
    ['looked up at load but not in Node-API', ['_napi_not_there', UNDEFINED, 254]],
    ["looked up at load, with a system function's name", ['_free', UNDEFINED, 0]],
    ["libmlx's but not exported by it", ['_inner', UNDEFINED, 2]],
    ["another library's", ['_add', UNDEFINED, 3]],
  ])('%s is a problem', (_, symbol) => {
    const { problems } = check([symbol]);
    expect(problems).toHaveLength(1);
    expect(problems[0]).toContain(symbol[0]);
  });

  test('the addon without MLX may not need libmlx', () => {
    expect(check([['_add', UNDEFINED, 2]], { nodeApi, mlx: null }).problems).toHaveLength(1);
  });
});

describe('what is built', () => {
  const cmake = readFileSync(join(ROOT, 'CMakeLists.txt'), 'utf8');

  test('the sources and definitions of CMakeLists.txt', () => {
    const [core, mlxAddon] = addonsOf(cmake);
    expect(core).toMatchObject({ name: 'tidemark_core', usesMlx: false, standard: '20' });
    expect(core!.sources).toContain('native/core/death_words.cc');
    expect(core!.definitions).toContain('NODE_ADDON_API_CPP_EXCEPTIONS');
    expect(mlxAddon!.sources).toContain('native/mlx/streams.cc');
    expect(mlxAddon!.definitions).toEqual(['NAPI_VERSION=9', 'NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS']);
  });

  test('a CMakeLists.txt that says it elsewhere is an error, not an empty build', () => {
    expect(() => addonsOf(cmake.replace('tidemark_addon(tidemark_core ', 'add_library(tidemark_core '))).toThrow('CMakeLists.txt');
  });

  test('Node-API as far as the addons ask for it', () => {
    const names = nodeApiNames(['NAPI_VERSION=9']);
    expect(names.has('napi_create_object')).toBe(true);
    expect(names.has('node_api_create_buffer_from_arraybuffer')).toBe(false);
  });
});
