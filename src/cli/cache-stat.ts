/**
 * `tidemark cache stat`: what the cache folder holds, by kind of file and by model.
 */
import { blockFiles, type FileKind, openCacheDir, shortFingerprint, walkCache } from './cache-walk.ts';
import { CACHE_DIR_OPTION, cacheDirOf } from './shared-options.ts';
import { formatBytes, formatCount, table } from './units.ts';
import { defineVerb } from './verb.ts';

interface Tally {
  files: number;
  bytes: number;
  diskBytes: number;
}

interface ModelTally extends Tally {
  fingerprint: string;
  blocks: number;
  tokens: number;
  newest: string;
}

export const cacheStat = defineVerb({
  name: 'cache stat',
  summary: 'Shows what the cache folder holds, by kind of file and by model.',
  options: { ...CACHE_DIR_OPTION },
  notes: [
    'Sizes are what the files occupy on disk. Reads names and headers only; `cache verify` reads every byte. Needs no MLX and may run beside a writing process.',
  ],
  examples: ['tidemark cache stat --json'],
  run: async (values, _positionals, { out }) => {
    const dir = openCacheDir(cacheDirOf(values));
    const kinds = new Map<FileKind, Tally>();
    for (const file of walkCache(dir)) add(kinds, file.kind, { files: 0, bytes: 0, diskBytes: 0 }, file);
    const models = new Map<string, ModelTally & { hashes: Set<string> }>();
    let unreadable = 0;
    for (const file of blockFiles(dir)) {
      if (!file.image.ok) {
        unreadable++;
        continue;
      }
      const { fingerprint, start, end } = file.image;
      const tally = add(
        models,
        fingerprint,
        { fingerprint, files: 0, bytes: 0, diskBytes: 0, blocks: 0, tokens: 0, newest: '', hashes: new Set<string>() },
        file,
      );
      if (!tally.hashes.has(file.blockHash)) {
        tally.hashes.add(file.blockHash);
        tally.blocks++;
        tally.tokens += end - start;
      }
      const modified = file.modified.toISOString();
      if (modified > tally.newest) tally.newest = modified;
    }
    const byModel = [...models.values()].map(({ hashes: _, ...model }) => model).sort((a, b) => b.diskBytes - a.diskBytes);
    const total = [...kinds.values()].reduce((sum, kind) => ({ files: sum.files + kind.files, diskBytes: sum.diskBytes + kind.diskBytes }), {
      files: 0,
      diskBytes: 0,
    });
    if (out.json) {
      await out.event({ dir, ...total, kinds: Object.fromEntries(kinds), models: byModel, unreadable });
      return 0;
    }
    await out.line(`${dir}: ${formatCount(total.files, 'file')}, ${formatBytes(total.diskBytes)}\n`);
    const kindRows = [...kinds].map(([kind, tally]) => [kind, `${tally.files}`, formatBytes(tally.diskBytes)]);
    await out.line(table([['kind', 'files', 'on disk'], ...kindRows], [1, 2]));
    if (byModel.length > 0) {
      const rows = byModel.map((model) => [
        shortFingerprint(model.fingerprint),
        `${model.blocks}`,
        `${model.tokens}`,
        formatBytes(model.diskBytes),
        model.newest,
      ]);
      await out.line(`\n${table([['model', 'blocks', 'tokens', 'on disk', 'newest'], ...rows], [1, 2, 3])}`);
    }
    if (unreadable > 0) await out.line(`\n${formatCount(unreadable, 'block file')} with a header that cannot be read; 'tidemark cache verify' says why`);
    return 0;
  },
});

/** Counts a file under a key, made with `empty` at first. */
function add<K, T extends Tally>(map: Map<K, T>, key: K, empty: T, file: { bytes: number; diskBytes: number }): T {
  const tally = map.get(key) ?? empty;
  map.set(key, tally);
  tally.files++;
  tally.bytes += file.bytes;
  tally.diskBytes += file.diskBytes;
  return tally;
}
