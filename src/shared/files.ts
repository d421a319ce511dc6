/**
 * The file layer: every file operation of the stores goes through here, on whatever thread calls.
 *
 * What it guarantees: files are made exclusively (never over something), 0600, and no symbolic link is followed in the
 * last component; folders are 0700 and a link in a folder's place is refused; writes are positional and loop over short
 * counts; errors are Node's own, with `code`, `errno`, `syscall` and `path`. Missing things are an answer, not an error,
 * where the name says so. No lock of rank 2 or above is held by any caller (design section 3, rule 1).
 *
 * `FileHooks` sees each operation before and after it happens: tests hold, fail or shorten operations there.
 */
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { loadNativeCore } from './native-core.ts';

export type FileOperation = 'mkdir' | 'create' | 'open' | 'pwrite' | 'pread' | 'fsync' | 'rename' | 'unlink' | 'rmdir' | 'syncFolder' | 'list' | 'lstat';

export interface FileHooks {
  /** May block or throw; a number shortens a `pwrite` to that many bytes. */
  before?(operation: FileOperation, path: string): unknown;
  after?(operation: FileOperation, path: string): void;
}

export type FileKind = 'file' | 'folder' | 'link' | 'other' | 'missing';

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_RDONLY, O_RDWR, O_DIRECTORY } = fs.constants;

/** One write stays below 2 GiB, the most that Node takes at once. */
const MAX_TRANSFER = 1 << 30;

/** The errno name of a file error ('ENOSPC', …), 'EUNKNOWN' for anything else. */
export function errnoOf(error: unknown): string {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : 'EUNKNOWN';
}

/** An error shaped like Node's file errors. */
export function fileError(code: string, syscall: string, path: string, message: string): Error {
  return Object.assign(new Error(`${code}: ${message}, ${syscall} '${path}'`), { code, syscall, path });
}

export class Files {
  readonly #hooks: FileHooks;

  constructor(hooks: FileHooks = {}) {
    this.#hooks = hooks;
  }

  /** Makes one folder, 0700. An existing one is fine; a link or a file in its place is `ELOOP` / `ENOTDIR`. */
  ensureFolder(path: string): void {
    this.#run('mkdir', path, () => {
      try {
        fs.mkdirSync(path, 0o700);
      } catch (error) {
        if (errnoOf(error) !== 'EEXIST') throw error;
        this.requireFolder(path);
      }
    });
  }

  /** Throws unless `path` itself is a folder (a link to one is not). */
  requireFolder(path: string): void {
    const kind = this.kind(path);
    if (kind === 'folder') return;
    if (kind === 'link') throw fileError('ELOOP', 'lstat', path, 'a symbolic link where a folder of the cache should be; remove it');
    throw fileError(kind === 'missing' ? 'ENOENT' : 'ENOTDIR', 'lstat', path, 'no folder of the cache there');
  }

  /** What lies at `path`, links not followed. */
  kind(path: string): FileKind {
    return this.#run('lstat', path, () => {
      const stat = fs.lstatSync(path, { throwIfNoEntry: false });
      if (stat === undefined) return 'missing';
      if (stat.isSymbolicLink()) return 'link';
      return stat.isFile() ? 'file' : stat.isDirectory() ? 'folder' : 'other';
    });
  }

  /** A new file for reading and writing; `EEXIST` when anything is there, a link included. */
  createExclusive(path: string): number {
    return this.#run('create', path, () => fs.openSync(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600));
  }

  /** An existing regular file for reading. A link is `ELOOP`, anything else that is no file `EINVAL`. */
  openRead(path: string): number {
    return this.#run('open', path, () => {
      const fd = fs.openSync(path, O_RDONLY | O_NOFOLLOW);
      if (fs.fstatSync(fd).isFile()) return fd;
      fs.closeSync(fd);
      throw fileError('EINVAL', 'open', path, 'not a regular file');
    });
  }

  size(fd: number): number {
    return fs.fstatSync(fd).size;
  }

  close(fd: number): void {
    fs.closeSync(fd);
  }

  /** Writes all of `bytes` at `position`. `path` is for hooks and errors only. */
  writeAll(fd: number, bytes: Uint8Array, position: number, path: string): void {
    let done = 0;
    while (done < bytes.length) {
      const wanted = Math.min(bytes.length - done, MAX_TRANSFER);
      const limit = this.#hooks.before?.('pwrite', path);
      const count = typeof limit === 'number' ? Math.min(limit, wanted) : wanted;
      const written = fs.writeSync(fd, bytes, done, count, position + done);
      this.#hooks.after?.('pwrite', path);
      if (written === 0) throw fileError('EIO', 'pwrite', path, 'the device takes no more bytes');
      done += written;
    }
  }

  /** The disk may begin with these bytes; when they are there, only `sync` says. No more than a hint: it has no errors and no hooks. */
  startWriteback(fd: number, from: number, bytes: number): void {
    loadNativeCore()?.startWriteback(fd, from, bytes);
  }

  /** Fills `target` from `position`; returns how many bytes were there. */
  readInto(fd: number, target: Uint8Array, position: number, path: string): number {
    let done = 0;
    while (done < target.length) {
      const count = this.#run('pread', path, () => fs.readSync(fd, target, done, Math.min(target.length - done, MAX_TRANSFER), position + done));
      if (count === 0) break;
      done += count;
    }
    return done;
  }

  /** On macOS libuv asks for F_FULLFSYNC here, so this reaches the medium on both platforms. */
  sync(fd: number, path: string): void {
    this.#run('fsync', path, () => fs.fsyncSync(fd));
  }

  rename(from: string, to: string): void {
    this.#run('rename', from, () => fs.renameSync(from, to));
  }

  /** Makes renames and removals in a folder survive a power cut. */
  syncFolder(path: string): void {
    this.#run('syncFolder', path, () => {
      const fd = fs.openSync(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      try {
        fs.fsyncSync(fd);
      } finally {
        fs.closeSync(fd);
      }
    });
  }

  /** Removes a file or the link itself; false when nothing was there. */
  removeFile(path: string): boolean {
    return this.#unlessMissing('unlink', path, () => fs.unlinkSync(path));
  }

  /** Removes a folder if it is empty; false when it is not, or not there. */
  removeFolderIfEmpty(path: string): boolean {
    try {
      return this.#unlessMissing('rmdir', path, () => fs.rmdirSync(path));
    } catch (error) {
      if (errnoOf(error) === 'ENOTEMPTY' || errnoOf(error) === 'EEXIST') return false;
      throw error;
    }
  }

  /** Removes a folder and what is in it, links as links; false when nothing was there. */
  removeTree(path: string): boolean {
    return this.#unlessMissing('rmdir', path, () => {
      if (fs.lstatSync(path).isDirectory()) fs.rmSync(path, { recursive: true });
      else fs.unlinkSync(path);
    });
  }

  /** Names in a folder, sorted; none when it is missing. */
  list(path: string): string[] {
    return this.#run('list', path, () => {
      try {
        return fs.readdirSync(path).sort();
      } catch (error) {
        if (errnoOf(error) === 'ENOENT') return [];
        throw error;
      }
    });
  }

  #unlessMissing(operation: FileOperation, path: string, act: () => void): boolean {
    try {
      this.#run(operation, path, act);
      return true;
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return false;
      throw error;
    }
  }

  #run<T>(operation: FileOperation, path: string, act: () => T): T {
    this.#hooks.before?.(operation, path);
    const result = act();
    this.#hooks.after?.(operation, path);
    return result;
  }
}

/** `path` beside the file it will replace: same folder, so that the rename stays on one file system. */
export function temporaryPathFor(path: string, unique: string): string {
  return join(dirname(path), `.${unique}.tmp`);
}
