/**
 * `tidemark cache gc`: brings the cache folder under a limit, as an engine does when it starts.
 */
import { statfsSync } from 'node:fs';
import { BlockPaths } from '../shared/blocks/paths.ts';
import { Files } from '../shared/files.ts';
import { loadNativeCore } from '../shared/native-core.ts';
import { removeDeadStaging, stagingRootOf } from '../shared/staging.ts';
import { BlockStore } from '../store-worker/block-store.ts';
import { evict } from '../store-worker/eviction.ts';
import { planGc } from './cache-gc-plan.ts';
import { withCacheLock } from './cache-lock.ts';
import { type CacheFile, openCacheDir, walkCache } from './cache-walk.ts';
import { CACHE_DIR_OPTION, cacheDirOf } from './shared-options.ts';
import { formatBytes, formatCount } from './units.ts';
import { defineVerb } from './verb.ts';

export const cacheGc = defineVerb({
  name: 'cache gc',
  summary: 'Removes what is left over and, above the limit, the least recently used blocks.',
  options: {
    ...CACHE_DIR_OPTION,
    'max-bytes': {
      type: 'bytes',
      value: 'SIZE',
      min: 0,
      help: 'limit for everything in the folder, such as 5GB',
      defaultText: 'the smaller of 20GB and 10 % of what is free',
    },
    'dry-run': { type: 'flag', help: 'say what would be removed, and remove nothing' },
  },
  notes: [
    'Left over are temporary files and staged states of processes that are gone, and block files whose header is damaged. Blocks go least recently used first, and never before the blocks that hang on them. ' +
      'Refuses while another process writes the folder; an engine keeps its folder under its limit by itself.',
  ],
  exitCodes: { 0: 'the folder is within the limit', 1: 'it is not, or nothing could be done' },
  examples: ['tidemark cache gc --max-bytes 5GB --dry-run'],
  run: async (values, _positionals, { out }) => {
    const dir = openCacheDir(cacheDirOf(values));
    const { bavail, bsize } = statfsSync(dir);
    const limit = values['max-bytes'] ?? Math.min(20e9, Math.floor((bavail * bsize) / 10));
    const dryRun = values['dry-run'];
    const report = await withCacheLock(dir, () => (dryRun ? planGc(dir, limit) : collect(dir, limit)));
    const within = report.bytesAfter <= limit;
    if (out.json) await out.event({ dir, limit, dryRun, ...report, within });
    else {
      const { files, blocks, bytesBefore, bytesAfter } = report;
      await out.line(
        `${formatCount(files, 'file')} (${formatCount(blocks, 'block')}), ${formatBytes(bytesBefore - bytesAfter)} ${dryRun ? 'would be ' : ''}removed`,
      );
      await out.line(`${formatBytes(bytesAfter)} ${dryRun ? 'would be ' : ''}left, the limit is ${formatBytes(limit)}`);
      for (const note of report.notes) out.note(note);
    }
    return within ? 0 : 1;
  },
});

export interface GcReport {
  bytesBefore: number;
  bytesAfter: number;
  /** Removed, blocks' files included. */
  files: number;
  /** Blocks removed for space. */
  blocks: number;
  notes: string[];
}

/** Files and bytes that count against the limit. */
function measure(dir: string): { files: number; bytes: number } {
  let files = 0;
  let bytes = 0;
  for (const file of walkCache(dir) as Iterable<CacheFile>) {
    files++;
    bytes += file.diskBytes;
  }
  return { files, bytes };
}

/** The lock is held, so that no session is alive and no engine reads the index. */
function collect(dir: string, limit: number): GcReport {
  const before = measure(dir);
  const files = new Files();
  const notes: string[] = [];
  let blocks = 0;
  // `withCacheLock` holds a lock of the native core, so it is there.
  removeDeadStaging(stagingRootOf(dir), files, loadNativeCore()!);
  const store = new BlockStore({
    files,
    cacheDir: dir,
    mode: 'writer',
    maxBytes: limit,
    emit: (event) => {
      if (event.type === 'evicted') blocks++;
      else if (event.type === 'note') notes.push(`${event.message} (${event.code})`);
    },
  });
  try {
    // Evicting stops at a number of files; it goes on as long as that takes something away.
    for (let report = evict(store, 0, () => false); report.excess > 0 && report.files > 0; report = evict(store, 0, () => false));
  } finally {
    store.close();
  }
  const { blocks: folder } = new BlockPaths(dir);
  for (const fan of files.list(folder)) files.removeFolderIfEmpty(`${folder}/${fan}`);
  const after = measure(dir);
  return { bytesBefore: before.bytes, bytesAfter: after.bytes, files: Math.max(0, before.files - after.files), blocks, notes };
}
