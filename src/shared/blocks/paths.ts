/**
 * Names under a cache folder. Nobody else builds them from strings.
 *
 *   <cacheDir>/blocks/<first 2 hex digits>/<block hash>.<kv|state>.safetensors     one file per block and part
 *   <cacheDir>/blocks/<first 2 hex digits>/.<unique>.tmp                           being written, or left by a crash
 *   <cacheDir>/index.sqlite, -wal, -shm                                            opened by SQLite only
 *   <cacheDir>/index.sqlite.damaged                                                the last index that had to be set aside
 */
import { join } from 'node:path';
import type { BlockPart } from '../layer-state.ts';

export const BLOCKS_FOLDER = 'blocks';
export const INDEX_FILE = 'index.sqlite';

const BLOCK_NAME = /^([0-9a-f]{64})\.(kv|state)\.safetensors$/;
const FAN_OUT_NAME = /^[0-9a-f]{2}$/;

export class BlockPaths {
  readonly cacheDir: string;
  readonly blocks: string;
  readonly index: string;

  constructor(cacheDir: string) {
    this.cacheDir = cacheDir;
    this.blocks = join(cacheDir, BLOCKS_FOLDER);
    this.index = join(cacheDir, INDEX_FILE);
  }

  /** The folder that both parts of a block lie in, so that one directory sync covers a unit. */
  fanOut(blockHash: string): string {
    return join(this.blocks, blockHash.slice(0, 2));
  }

  block(blockHash: string, part: BlockPart): string {
    return join(this.fanOut(blockHash), `${blockHash}.${part}.safetensors`);
  }

  temporary(blockHash: string, unique: string): string {
    return join(this.fanOut(blockHash), `.${unique}.tmp`);
  }
}

/** Block hash and part of a file name, or null when it is not one of ours. */
export function parseBlockName(name: string): { blockHash: string; part: BlockPart } | null {
  const match = BLOCK_NAME.exec(name);
  return match === null ? null : { blockHash: match[1]!, part: match[2] as BlockPart };
}

export function isFanOutName(name: string): boolean {
  return FAN_OUT_NAME.test(name);
}

export function isTemporaryName(name: string): boolean {
  return name.startsWith('.') && name.endsWith('.tmp');
}
