/**
 * `tidemark cache purge`: removes a model's blocks, or everything that Tidemark stored in the folder.
 */
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { BlockPaths } from '../shared/blocks/paths.ts';
import { Files } from '../shared/files.ts';
import { stagingRootOf } from '../shared/staging.ts';
import { BlockStore } from '../store-worker/block-store.ts';
import { withCacheLock } from './cache-lock.ts';
import { blockFiles, type CacheFile, openCacheDir, walkCache } from './cache-walk.ts';
import { UsageError } from './command-error.ts';
import { SIGNAL_EXIT_CODES } from './interrupts.ts';
import { CACHE_DIR_OPTION, cacheDirOf, MODEL_FILTER_OPTION } from './shared-options.ts';
import { formatBytes, formatCount } from './units.ts';
import { type Context, defineVerb } from './verb.ts';

export const cachePurge = defineVerb({
  name: 'cache purge',
  summary: "Removes a model's blocks, or everything that was stored.",
  options: {
    ...CACHE_DIR_OPTION,
    ...MODEL_FILTER_OPTION,
    all: { type: 'flag', help: 'remove everything: blocks of all models, index, staged states' },
    yes: { type: 'flag', short: 'y', help: 'do not ask' },
  },
  notes: ['Asks before anything is removed. Files that are not of this library stay. Refuses while another process writes the folder.'],
  exitCodes: { 1: 'failed, or the answer was no' },
  examples: ['tidemark cache purge --model 3f9a2c', 'tidemark cache purge --all --yes'],
  run: async (values, _positionals, context) => {
    const { out } = context;
    if (values.all === (values.model !== undefined)) throw new UsageError('cache purge', 'say what to remove: --model FINGERPRINT or --all');
    if (!values.yes && (context.stdin.isTTY !== true || out.json)) throw new UsageError('cache purge', 'there is nobody to ask; --yes removes without asking');
    const dir = openCacheDir(cacheDirOf(values));
    return withCacheLock(dir, async () => {
      const doomed = values.all ? everything(dir) : ofModel(dir, values.model!);
      const bytes = doomed.reduce((sum, file) => sum + file.diskBytes, 0);
      const what = `${formatCount(doomed.length, 'file')} (${formatBytes(bytes)})`;
      if (!values.yes && !(await confirm(`Remove ${what} from ${dir}? [y/N] `, context))) {
        out.note('nothing was removed');
        return 1;
      }
      if (values.all) removeAll(dir, doomed);
      else removeModel(dir, new Set(doomed.map((file) => file.blockHash!)));
      if (out.json) await out.event({ dir, files: doomed.length, bytes });
      else await out.line(`${what} removed`);
      return 0;
    });
  },
});

function confirm(question: string, { out, stdin, exitNow }: Context): Promise<boolean> {
  return new Promise((resolve) => {
    const readline = createInterface({ input: stdin, output: out.stderr });
    // Ctrl-D is no answer, and no answer is a no.
    readline.on('close', () => resolve(false));
    readline.on('SIGINT', () => {
      readline.close();
      exitNow(SIGNAL_EXIT_CODES.SIGINT);
    });
    readline.question(question, (answer) => {
      resolve(/^y(es)?$/i.test(answer.trim()));
      readline.close();
    });
  });
}

/** Everything of ours but the lock, which this process holds. */
function everything(dir: string): CacheFile[] {
  return [...walkCache(dir)].filter(({ kind }) => kind !== 'lock' && kind !== 'foreign');
}

function ofModel(dir: string, prefix: string): CacheFile[] {
  const found = new Set<string>();
  const doomed: CacheFile[] = [];
  for (const file of blockFiles(dir)) {
    if (!file.image.ok || !file.image.fingerprint.startsWith(prefix)) continue;
    found.add(file.image.fingerprint);
    doomed.push(file);
  }
  if (found.size > 1)
    throw new UsageError('cache purge', `${prefix} is the start of ${found.size} fingerprints: ${[...found].sort().join(', ')}; give more digits`);
  return doomed;
}

/** Through the store, so that the index loses the rows as well. */
function removeModel(dir: string, hashes: ReadonlySet<string>): void {
  const store = new BlockStore({ files: new Files(), cacheDir: dir, mode: 'writer', maxBytes: Number.MAX_SAFE_INTEGER, emit: () => undefined });
  try {
    for (const hash of hashes) {
      const row = store.row(hash);
      if (row !== null) store.removeBlock(row);
    }
  } finally {
    store.close();
  }
}

function removeAll(dir: string, doomed: readonly CacheFile[]): void {
  const files = new Files();
  files.removeTree(stagingRootOf(dir));
  for (const file of doomed) files.removeFile(file.path);
  const { blocks } = new BlockPaths(dir);
  for (const folder of new Set(doomed.filter((file) => file.kind === 'kv' || file.kind === 'state').map((file) => dirname(file.path))))
    files.removeFolderIfEmpty(folder);
  files.removeFolderIfEmpty(blocks);
}
