// What the check of a macOS build reads out of Mach-O files: which libraries one names, which symbols it exports, and which it
// expects from where. 64-bit little-endian files only, thin or the arm64 slice of a universal one.

const MAGIC_64 = 0xfeedfacf;
const MAGIC_FAT = 0xcafebabe;
const CPU_ARM64 = 0x0100000c;
const LC_SYMTAB = 0x2;
const LC_ID_DYLIB = 0xd;
/** LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB, LC_REEXPORT_DYLIB, LC_LOAD_UPWARD_DYLIB: each takes the next ordinal. */
const LOADS = new Set([0xc, 0x80000018, 0x8000001f, 0x80000023]);

// nlist_64: strx u32, type u8, section u8, desc u16, value u64.
const NLIST_SIZE = 16;
const N_STAB = 0xe0;
const N_PEXT = 0x10;
const N_TYPE = 0x0e;
const N_EXT = 0x01;
const N_UNDF = 0x0;
const N_PBUD = 0xc;

/** Two-level names: the high byte of `desc` is the ordinal of the library. These name none: zig writes the first where Apple's linker writes the second. */
const UNBOUND = new Set([0, 0xfe]);

/**
 * @param {Buffer} file
 * @returns {{id: string | null, libraries: string[], exported: Set<string>, undefined: {name: string, from: string | null}[]}}
 *   `from`: the library the symbol is bound to, null where it is looked up everywhere when the file is loaded
 */
export function readMachO(file) {
  const bytes = armSlice(file);
  if (bytes.length < 32 || bytes.readUInt32LE(0) !== MAGIC_64) throw new Error('this is no 64-bit Mach-O file');
  if (bytes.readUInt32LE(4) !== CPU_ARM64) throw new Error('this Mach-O file is not for arm64');
  const found = { id: null, libraries: [], exported: new Set(), undefined: [] };
  let symbols = null;
  let at = 32;
  for (let k = bytes.readUInt32LE(16); k > 0; k--) {
    const command = bytes.readUInt32LE(at);
    const text = () => cString(bytes, at + bytes.readUInt32LE(at + 8));
    if (command === LC_SYMTAB) symbols = [8, 12, 16, 20].map((offset) => bytes.readUInt32LE(at + offset));
    else if (command === LC_ID_DYLIB) found.id = text();
    else if (LOADS.has(command)) found.libraries.push(text());
    at += bytes.readUInt32LE(at + 4);
  }
  if (symbols !== null) readSymbols(bytes, symbols, found);
  return found;
}

function readSymbols(bytes, [offset, count, strings], found) {
  for (let at = offset; at < offset + count * NLIST_SIZE; at += NLIST_SIZE) {
    const type = bytes[at + 4];
    if (type & N_STAB || !(type & N_EXT)) continue;
    const name = cString(bytes, strings + bytes.readUInt32LE(at));
    const kind = type & N_TYPE;
    if (kind !== N_UNDF && kind !== N_PBUD) {
      if (!(type & N_PEXT)) found.exported.add(name);
      continue;
    }
    const ordinal = bytes.readUInt16LE(at + 6) >> 8;
    const library = UNBOUND.has(ordinal) ? null : found.libraries[ordinal - 1];
    if (library === undefined) throw new Error(`${name} is bound to library ${ordinal}, but the file names only ${found.libraries.length}`);
    found.undefined.push({ name, from: library });
  }
}

function armSlice(file) {
  if (file.length < 8 || file.readUInt32BE(0) !== MAGIC_FAT) return file;
  for (let k = 0; k < file.readUInt32BE(4); k++) {
    const at = 8 + k * 20;
    if (file.readUInt32BE(at) === CPU_ARM64) return file.subarray(file.readUInt32BE(at + 8), file.readUInt32BE(at + 8) + file.readUInt32BE(at + 12));
  }
  throw new Error('this universal file has nothing for arm64');
}

function cString(bytes, at) {
  return bytes.toString('latin1', at, bytes.indexOf(0, at));
}

/**
 * Where each undefined symbol of an addon comes from, and those that come from nowhere. A symbol must be one of Node-API's, be bound
 * by the linker to a library of the system, or be exported by libmlx.
 *
 * @param {ReturnType<typeof readMachO>} addon
 * @param {{nodeApi: Set<string>, mlx: ReturnType<typeof readMachO> | null}} known names of Node-API without the leading underscore
 */
export function checkUndefined(addon, { nodeApi, mlx }) {
  const counts = { nodeApi: 0, system: 0, mlx: 0 };
  const problems = [];
  for (const { name, from } of addon.undefined) {
    if (from === null) {
      if (name.startsWith('_') && nodeApi.has(name.slice(1))) counts.nodeApi++;
      else problems.push(`${name}: looked up at load, and no function of Node-API`);
    } else if (mlx !== null && from === mlx.id) {
      if (mlx.exported.has(name)) counts.mlx++;
      else problems.push(`${name}: not exported by ${from}`);
    } else if (/^\/(usr\/lib|System\/Library)\//.test(from)) counts.system++;
    else problems.push(`${name}: from ${from}, which is neither the system's nor libmlx`);
  }
  return { counts, problems };
}
