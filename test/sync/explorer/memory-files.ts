/**
 * A folder in memory behind the product's file layer: every operation is a step, so that others may run before it.
 *
 * A file holds one number, the stamp of the image whose bytes were written. It notices bytes that are of another boundary than
 * the name says, a file whose parts are of two images, and an item that is published twice.
 */
import { basename, dirname } from 'node:path';
import { fileError } from '../../../src/shared/files.ts';
import type { Step, World } from './scheduler.ts';

interface Inode {
  stamp: number;
}

const FOLDER = 'folder';

/** Names under which `MemoryFiles` gives steps. */
export const FILE_STEPS = [
  'kind',
  'ensureFolder',
  'requireFolder',
  'createExclusive',
  'openRead',
  'writeAll',
  'sync',
  'readInto',
  'rename',
  'removeFile',
  'removeFolderIfEmpty',
  'removeTree',
  'list',
];

export class MemoryFiles {
  readonly #world: World;
  readonly #entries = new Map<string, Inode | typeof FOLDER>();
  readonly #open: Inode[] = [];
  readonly #published = new Set<string>();
  /** Which boundary (the end of its path) an image's stamp belongs to. */
  readonly #boundaryOf: (stamp: number) => string | undefined;
  /** Operations that fail, each once: how often the operation is let through before. */
  #failing = new Map<string, number>();

  constructor(world: World, boundaryOf: (stamp: number) => string | undefined) {
    this.#world = world;
    this.#boundaryOf = boundaryOf;
  }

  reset(folders: readonly string[], failing: Readonly<Record<string, number>> = {}): void {
    this.#entries.clear();
    this.#open.length = 0;
    this.#published.clear();
    this.#failing = new Map(Object.entries(failing));
    for (const folder of folders) this.#entries.set(folder, FOLDER);
  }

  /** Paths of files, temporary ones included. */
  get files(): string[] {
    return [...this.#entries].filter(([, entry]) => entry !== FOLDER).map(([path]) => path);
  }

  get folders(): string[] {
    return [...this.#entries].filter(([, entry]) => entry === FOLDER).map(([path]) => path);
  }

  isFile(path: string): boolean {
    const entry = this.#entries.get(path);
    return entry !== undefined && entry !== FOLDER;
  }

  /** Whether a file was ever renamed to `path`. */
  wasPublished(path: string): boolean {
    return this.#published.has(path);
  }

  signature(): number {
    let sum = this.#published.size;
    for (const [path, entry] of this.#entries) sum = (sum + Math.imul(hashOf(path), entry === FOLDER ? 7 : 31 + entry.stamp)) | 0;
    for (const [operation, left] of this.#failing) sum = (sum + Math.imul(hashOf(operation), left + 3)) | 0;
    return sum;
  }

  *kind(path: string): Step {
    return yield* this.#run('kind', () => this.#kind(path));
  }

  *ensureFolder(path: string): Step {
    yield* this.#run('ensureFolder', () => {
      if (!this.#entries.has(dirname(path))) throw fileError('ENOENT', 'mkdir', path, 'no such folder');
      if (!this.#entries.has(path)) this.#entries.set(path, FOLDER);
    });
    return undefined;
  }

  *requireFolder(path: string): Step {
    yield* this.#run('requireFolder', () => {
      if (this.#kind(path) !== FOLDER) throw fileError('ENOENT', 'lstat', path, 'no folder of the cache there');
    });
    return undefined;
  }

  *createExclusive(path: string): Step {
    return yield* this.#run('createExclusive', () => {
      if (this.#entries.get(dirname(path)) !== FOLDER) throw fileError('ENOENT', 'open', path, 'no such folder');
      if (this.#entries.has(path)) throw fileError('EEXIST', 'open', path, 'exists');
      const inode = { stamp: 0 };
      this.#entries.set(path, inode);
      return this.#open.push(inode);
    });
  }

  *openRead(path: string): Step {
    return yield* this.#run('openRead', () => {
      const entry = this.#entries.get(path);
      if (entry === undefined || entry === FOLDER) throw fileError('ENOENT', 'open', path, 'no such file');
      return this.#open.push(entry);
    });
  }

  *writeAll(fd: number, bytes: Uint8Array, at: number, path: string): Step {
    yield* this.#run('writeAll', () => {
      const inode = this.#open[fd - 1]!;
      const stamp = stampOf(bytes);
      if (at > 0 && inode.stamp !== stamp) this.#world.fault = `${basename(path)} holds parts of images ${inode.stamp} and ${stamp}`;
      inode.stamp = stamp;
    });
    return undefined;
  }

  *sync(): Step {
    yield* this.#run('sync', () => undefined);
    return undefined;
  }

  startWriteback(): void {
    // A hint to a disk that is not there.
  }

  close(): void {
    // Nobody runs out of descriptors here.
  }

  size(): number {
    return 4;
  }

  *readInto(fd: number, target: Uint8Array): Step {
    return yield* this.#run('readInto', () => {
      new DataView(target.buffer, target.byteOffset).setInt32(0, this.#open[fd - 1]!.stamp, true);
      this.#world.observe(this.#open[fd - 1]!.stamp);
      return target.length;
    });
  }

  *rename(from: string, to: string): Step {
    yield* this.#run('rename', () => {
      const entry = this.#entries.get(from);
      if (entry === undefined || this.#entries.get(dirname(to)) !== FOLDER) throw fileError('ENOENT', 'rename', from, 'no such file');
      this.#entries.delete(from);
      this.#entries.set(to, entry);
      if (entry === FOLDER || !from.endsWith('.tmp')) return;
      if (this.#published.has(from)) this.#world.fault = `${basename(from)} was published twice`;
      this.#published.add(from).add(to);
      if (!to.endsWith(this.#boundaryOf(entry.stamp) ?? 'no boundary')) this.#world.fault = `${to} holds the image of ${this.#boundaryOf(entry.stamp)}`;
    });
    return undefined;
  }

  *removeFile(path: string): Step {
    return yield* this.#run('removeFile', () => this.#entries.delete(path));
  }

  *removeFolderIfEmpty(path: string): Step {
    return yield* this.#run('removeFolderIfEmpty', () => {
      for (const other of this.#entries.keys()) if (dirname(other) === path) return false;
      return this.#entries.delete(path);
    });
  }

  *removeTree(path: string): Step {
    return yield* this.#run('removeTree', () => {
      for (const other of [...this.#entries.keys()]) if (other.startsWith(`${path}/`)) this.#entries.delete(other);
      return this.#entries.delete(path);
    });
  }

  *list(path: string): Step {
    return yield* this.#run('list', () => [...this.#entries.keys()].filter((other) => dirname(other) === path).map((other) => basename(other)));
  }

  #kind(path: string): string {
    const entry = this.#entries.get(path);
    return entry === undefined ? 'missing' : entry === FOLDER ? 'folder' : 'file';
  }

  *#run<T>(operation: string, act: () => T): Generator<undefined, T, undefined> {
    const outcome = yield* this.#world.step(
      () => {
        const left = this.#failing.get(operation);
        if (left !== undefined) {
          this.#failing.set(operation, left - 1);
          if (left === 0) return { error: fileError('EIO', operation, '', 'a disk that fails') };
        }
        try {
          return { value: act() };
        } catch (error) {
          return { error: error as Error };
        }
      },
      (result) => hashOf('value' in result ? String(result.value) : result.error.message),
    );
    if ('error' in outcome) throw outcome.error;
    return outcome.value;
  }
}

/** The stamp that `stamped` has put into each part. */
function stampOf(bytes: Uint8Array): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getInt32(0, true);
}

export function stamp(bytes: Uint8Array, value: number): void {
  new DataView(bytes.buffer, bytes.byteOffset).setInt32(0, value, true);
}

const hashes = new Map<string, number>();

export function hashOf(text: string): number {
  let hash = hashes.get(text);
  if (hash === undefined) {
    hash = 0x811c9dc5;
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
    hashes.set(text, hash);
  }
  return hash;
}
