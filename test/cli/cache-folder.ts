/**
 * Cache folders made for a test: real block files, without an engine.
 */
import { createHash } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { ChainHasher } from '../../src/shared/blocks/identity.ts';
import { buildImage } from '../../src/shared/blocks/image.ts';
import { BlockPaths } from '../../src/shared/blocks/paths.ts';
import type { BlockPart, LayerState, TensorBytes } from '../../src/shared/layer-state.ts';

export const BLOCK = 16;

function tensor(seed: string, shape: readonly number[]): TensorBytes {
  const byteLength = shape.reduce((product, extent) => product * extent, 4);
  const bytes = Buffer.alloc(byteLength, createHash('sha256').update(seed).digest());
  return { dtype: 'F32', shape, byteLength, copyTo: (target, from) => target.set(bytes.subarray(from, from + target.length)) };
}

function layers(part: BlockPart, hash: string, start: number, end: number): LayerState[] {
  if (part === 'state') return [{ className: 'ArraysCache', stored: 'whole', meta: [], elements: [tensor(hash, [1, 256, 256])] }];
  const rows = tensor(hash, [1, 2, end - start, 32]);
  return [{ className: 'KVCache', stored: 'slice', range: [start, end], meta: [], elements: [rows, rows] }];
}

export interface MadeBlock {
  hash: string;
  kv: string;
  state: string;
}

/** A chain of `count` blocks with both parts each; `seed` makes its tokens, `fingerprint` its model. */
export function makeChain(dir: string, count: number, fingerprint: string, seed = 1): MadeBlock[] {
  const hasher = new ChainHasher({ fingerprint, extraKeys: [] });
  const paths = new BlockPaths(dir);
  const made: MadeBlock[] = [];
  let parentHash = '';
  for (let i = 0; i < count; i++) {
    const tokens = Uint32Array.from({ length: BLOCK }, (_, j) => seed * 1000 + i * BLOCK + j);
    const hash = hasher.block(parentHash, tokens);
    const start = i * BLOCK;
    const end = start + BLOCK;
    for (const part of ['kv', 'state'] as const) {
      const path = paths.block(hash, part);
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(
        path,
        buildImage({ part, blockHash: hash, parentHash, start, end, blockSize: BLOCK, tokens, fingerprint, layers: layers(part, hash, start, end) }),
      );
    }
    made.push({ hash, kv: paths.block(hash, 'kv'), state: paths.block(hash, 'state') });
    parentHash = hash;
  }
  return made;
}

/** What crashed processes and strangers leave: a temporary file, a staged state, a file of somebody else. */
export function makeLitter(dir: string): { temporary: string; staged: string; foreign: string } {
  const temporary = join(dir, 'blocks', 'aa', '.1-2.tmp');
  const staged = join(dir, '_boundary_snapshots', 'gone', 'b'.repeat(64), '256.safetensors');
  const foreign = join(dir, 'notes.txt');
  for (const path of [temporary, staged, foreign]) {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, 'x'.repeat(5000));
  }
  return { temporary, staged, foreign };
}
