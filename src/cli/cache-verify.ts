/**
 * `tidemark cache verify`: reads every byte of every block file and compares the checksums.
 */
import { openBlockFile } from '../shared/blocks/block-file.ts';
import type { ImageMiss, ParsedImage } from '../shared/blocks/image.ts';
import { Files } from '../shared/files.ts';
import { openCacheDir, walkCache } from './cache-walk.ts';
import { CACHE_DIR_OPTION, cacheDirOf } from './shared-options.ts';
import { formatBytes, formatCount } from './units.ts';
import { defineVerb } from './verb.ts';

interface Damage {
  path: string;
  reason: string;
  detail: string;
}

export const cacheVerify = defineVerb({
  name: 'cache verify',
  summary: 'Reads every byte of every block file and compares the checksums.',
  options: { ...CACHE_DIR_OPTION },
  notes: [
    'Damaged files do no harm: an engine that reads one counts a miss and computes the tokens again. Nothing is changed or removed here. ' +
      'Blocks whose parent is not in the folder are counted, too: they cannot be found from the start of a prompt, and are no damage.',
  ],
  exitCodes: { 0: 'every block file is whole', 1: 'at least one is damaged, or the folder cannot be read' },
  examples: ['tidemark cache verify --cache /data/tidemark'],
  run: async (values, _positionals, { out, interrupts }) => {
    const dir = openCacheDir(cacheDirOf(values));
    const files = new Files();
    const damaged: Damage[] = [];
    const parents = new Map<string, string>();
    let count = 0;
    let bytes = 0;
    let stopped = false;
    await interrupts.during(
      () => {
        stopped = true;
      },
      async () => {
        for (const file of walkCache(dir)) {
          if (file.blockHash === null) continue;
          if (stopped) return;
          const image = verifyFile(files, file.path, file.blockHash, file.kind as 'kv' | 'state');
          if (image === 'gone') continue;
          count++;
          bytes += file.bytes;
          out.progress(`${formatCount(count, 'file')}, ${formatBytes(bytes)}`);
          if (image.ok) parents.set(file.blockHash, image.parentHash);
          else damaged.push({ path: file.path, reason: image.reason, detail: image.detail });
          // Reading is synchronous: the loop turns between two files, so that Ctrl-C is heard.
          await new Promise((resolve) => setImmediate(resolve));
        }
      },
    );
    const orphans = [...parents.values()].filter((parent) => parent !== '' && !parents.has(parent)).length;
    if (out.json) await out.event({ dir, files: count, bytes, damaged, orphans, complete: !stopped });
    else {
      for (const { path, reason, detail } of damaged) await out.line(`damaged (${reason}): ${path}\n  ${detail}`);
      await out.line(
        `${formatCount(count, 'file')}, ${formatBytes(bytes)} read, ${damaged.length} damaged${orphans > 0 ? `, ${formatCount(orphans, 'block')} without a parent` : ''}`,
      );
    }
    if (stopped) return 130;
    return damaged.length > 0 ? 1 : 0;
  },
});

function verifyFile(files: Files, path: string, blockHash: string, part: 'kv' | 'state'): ParsedImage | ImageMiss | 'gone' {
  const file = openBlockFile(files, path);
  if ('ok' in file) return file.reason === 'gap' ? 'gone' : file;
  try {
    return file.readVerified(new Uint8Array(file.byteLength), { blockHash, part });
  } finally {
    file.close();
  }
}
