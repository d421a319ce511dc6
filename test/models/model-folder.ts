/** Model folders made by tests: the tiny model taken apart, changed and written again. */
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { ROOT } from '../helpers/paths.ts';

export const TINY: string = join(ROOT, 'test/fixtures/models/tiny-qwen3_5');

export interface StoredTensor {
  dtype: string;
  shape: number[];
  bytes: Uint8Array;
}
export type Tensors = Map<string, StoredTensor>;
// biome-ignore lint/suspicious/noExplicitAny: tests write any JSON into a configuration
export type Config = Record<string, any>;

export interface Parts {
  config: Config;
  tensors: Tensors;
}

/** The tiny model's configuration and tensors, free to change. */
export function tinyParts(): Parts {
  return { config: JSON.parse(readFileSync(join(TINY, 'config.json'), 'utf8')), tensors: readTensors(join(TINY, 'model.safetensors')) };
}

export function readTensors(path: string): Tensors {
  const file = readFileSync(path);
  const length = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, 8 + length).toString()) as Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }>;
  const tensors: Tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const [from, to] = entry.data_offsets;
    tensors.set(name, { dtype: entry.dtype, shape: entry.shape, bytes: new Uint8Array(file.subarray(8 + length + from, 8 + length + to)) });
  }
  return tensors;
}

export function writeTensors(path: string, tensors: Tensors): void {
  let at = 0;
  const header: Record<string, unknown> = { __metadata__: { format: 'mlx' } };
  for (const [name, { dtype, shape, bytes }] of tensors) {
    header[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
    at += bytes.length;
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([length, text, ...[...tensors.values()].map(({ bytes }) => bytes)]));
}

/** An empty folder that is gone after the test. */
export function emptyFolder(): string {
  const dir = mkdtempSync(join(tmpdir(), 'tm-model-'));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Writes a folder, in `shards` files with an index when more than one. */
export function writeFolder({ config, tensors }: Parts, shards = 1): string {
  const dir = emptyFolder();
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, 'config.json'), JSON.stringify(config));
  for (const name of ['tokenizer.json', 'tokenizer_config.json', 'generation_config.json']) {
    if (existsSync(join(TINY, name))) copyFileSync(join(TINY, name), join(dir, name));
  }
  if (shards === 1) {
    writeTensors(join(dir, 'model.safetensors'), tensors);
    return dir;
  }
  const weightMap: Record<string, string> = {};
  for (let i = 0; i < shards; i++) {
    const file = `model-${String(i + 1).padStart(5, '0')}-of-${String(shards).padStart(5, '0')}.safetensors`;
    const part: Tensors = new Map([...tensors].filter((_, n) => n % shards === i));
    for (const name of part.keys()) weightMap[name] = file;
    writeTensors(join(dir, file), part);
  }
  writeFileSync(join(dir, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: weightMap }));
  return dir;
}

/** The same tensors under other names. */
export function renamed(tensors: Tensors, rename: (name: string) => string): Tensors {
  return new Map([...tensors].map(([name, tensor]) => [rename(name), tensor]));
}

/** A bfloat16 or float32 tensor as numbers. */
export function numbersOf({ dtype, bytes }: StoredTensor): Float32Array {
  if (dtype === 'F32') return new Float32Array(bytes.slice().buffer);
  const half = new Uint16Array(bytes.slice().buffer);
  return new Float32Array(Uint32Array.from(half, (value) => value << 16).buffer);
}

export function float32Tensor(values: Float32Array, shape: number[]): StoredTensor {
  return { dtype: 'F32', shape, bytes: new Uint8Array(values.slice().buffer) };
}

/** A tensor of zeros, for what must only exist. */
export function zeros(dtype: string, shape: number[]): StoredTensor {
  const size = dtype === 'F32' || dtype === 'U32' ? 4 : 2;
  return { dtype, shape, bytes: new Uint8Array(shape.reduce((a, b) => a * b, size)) };
}
