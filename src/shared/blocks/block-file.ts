/**
 * One block file on disk: written whole to a temporary name and synced, read whole and verified.
 *
 * Nothing here renames into place: publishing is a unit's business, since all files of a unit become visible together.
 */
import { errnoOf, type Files } from '../files.ts';
import { type ExpectedImage, headerLength, type ImageMiss, MAX_HEADER_BYTES, type ParsedImage, parseImageHeader, verifyImage } from './image-parse.ts';
import { PagedBytes } from './paged-bytes.ts';

/** Creates `path`, writes all bytes, syncs. On any error the file is gone again and the error is thrown. */
export function writeSynced(files: Files, path: string, bytes: PagedBytes): void {
  const fd = files.createExclusive(path);
  try {
    let at = 0;
    for (const segment of bytes.segments(0, bytes.byteLength)) {
      files.writeAll(fd, segment, at, path);
      at += segment.length;
    }
    files.sync(fd, path);
  } catch (error) {
    files.close(fd);
    files.removeFile(path);
    throw error;
  }
  files.close(fd);
}

/** An I/O failure as a miss: gone files are `gap`, everything else `io` with its errno. */
export function ioMiss(error: unknown, path: string): ImageMiss {
  const errno = errnoOf(error);
  if (errno === 'ENOENT' || errno === 'ENOTDIR') return { ok: false, reason: 'gap', detail: `${path} is not there` };
  return { ok: false, reason: 'io', detail: `${path}: ${errno}` };
}

/** Header of the file at `path`, read and checked without its payload. */
export function readImageHeader(files: Files, path: string): ParsedImage | ImageMiss {
  try {
    const fd = files.openRead(path);
    try {
      const size = files.size(fd);
      const prefix = new Uint8Array(8);
      const got = files.readInto(fd, prefix, 0, path);
      const length = headerLength(prefix.subarray(0, got), size);
      if (typeof length !== 'number') return length;
      const header = new Uint8Array(Math.min(length, MAX_HEADER_BYTES + 8));
      return parseImageHeader(header.subarray(0, files.readInto(fd, header, 0, path)), size);
    } finally {
      files.close(fd);
    }
  } catch (error) {
    return ioMiss(error, path);
  }
}

/** An open block file that is about to be read whole. */
export interface OpenBlockFile {
  readonly byteLength: number;
  /** Reads everything into `target` (exactly `byteLength` bytes) and verifies every byte of it. */
  readVerified(target: Uint8Array, expected: ExpectedImage): ParsedImage | ImageMiss;
  close(): void;
}

/** Opens a block file; its size is what the file system says now, a change until the read is found there. */
export function openBlockFile(files: Files, path: string): OpenBlockFile | ImageMiss {
  let fd: number;
  let byteLength: number;
  try {
    fd = files.openRead(path);
  } catch (error) {
    return ioMiss(error, path);
  }
  try {
    byteLength = files.size(fd);
  } catch (error) {
    files.close(fd);
    return ioMiss(error, path);
  }
  return {
    byteLength,
    readVerified(target, expected) {
      try {
        const got = files.readInto(fd, target, 0, path);
        if (got !== byteLength) return { ok: false, reason: 'truncated', detail: `${path} gave ${got} of ${byteLength} bytes` };
      } catch (error) {
        return ioMiss(error, path);
      }
      return verifyImage(PagedBytes.of(target), expected);
    },
    close: () => files.close(fd),
  };
}
