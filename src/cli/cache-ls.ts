/**
 * `tidemark cache ls`: the blocks in the cache folder.
 */
import { type BlockFileInfo, blockFiles, openCacheDir, shortFingerprint } from './cache-walk.ts';
import { CACHE_DIR_OPTION, cacheDirOf, MODEL_FILTER_OPTION } from './shared-options.ts';
import { formatBytes, formatCount, table } from './units.ts';
import { defineVerb } from './verb.ts';

interface BlockEntry {
  block: string;
  parent: string;
  model: string;
  start: number;
  end: number;
  parts: string[];
  diskBytes: number;
  modified: string;
}

export const cacheLs = defineVerb({
  name: 'cache ls',
  summary: 'Lists the blocks in the cache folder, newest first.',
  options: {
    ...CACHE_DIR_OPTION,
    ...MODEL_FILTER_OPTION,
    limit: { type: 'integer', value: 'N', min: 1, help: 'show at most N blocks', defaultText: 'all' },
  },
  notes: [
    "A block holds tokens [start, end) of a prompt: part 'kv' the attention layers' rows of these tokens, part 'state' the other layers' state at its end. Prompts are not shown; their tokens are in the files.",
  ],
  examples: ['tidemark cache ls --limit 20'],
  run: async (values, _positionals, { out }) => {
    const dir = openCacheDir(cacheDirOf(values));
    const entries = new Map<string, BlockEntry>();
    for (const file of blockFiles(dir)) collect(entries, file, values.model);
    const sorted = [...entries.values()].sort((a, b) => (a.modified === b.modified ? a.start - b.start : a.modified < b.modified ? 1 : -1));
    const shown = sorted.slice(0, values.limit ?? sorted.length);
    if (out.json) {
      for (const entry of shown) await out.event({ ...entry });
      return 0;
    }
    if (sorted.length === 0) await out.line('no blocks');
    else {
      const rows = shown.map((entry) => [
        entry.block.slice(0, 12),
        `${entry.start}`,
        `${entry.end}`,
        entry.parts.join('+'),
        formatBytes(entry.diskBytes),
        shortFingerprint(entry.model),
        entry.modified,
      ]);
      await out.line(table([['block', 'start', 'end', 'parts', 'on disk', 'model', 'written'], ...rows], [1, 2, 4]));
      if (shown.length < sorted.length) await out.line(`and ${formatCount(sorted.length - shown.length, 'block')} more`);
    }
    return 0;
  },
});

function collect(entries: Map<string, BlockEntry>, file: BlockFileInfo, model: string | undefined): void {
  const { image } = file;
  if (!image.ok || (model !== undefined && !image.fingerprint.startsWith(model))) return;
  const modified = file.modified.toISOString();
  const known = entries.get(file.blockHash);
  if (known === undefined) {
    const { parentHash, fingerprint, start, end } = image;
    entries.set(file.blockHash, {
      block: file.blockHash,
      parent: parentHash,
      model: fingerprint,
      start,
      end,
      parts: [file.kind],
      diskBytes: file.diskBytes,
      modified,
    });
    return;
  }
  known.parts.push(file.kind);
  known.parts.sort();
  known.diskBytes += file.diskBytes;
  if (modified > known.modified) known.modified = modified;
}
