/** The tiny models, one for each family, and what the engine is expected to keep of a sequence in each layer. */
import { join } from 'node:path';
import { ROOT } from './paths.ts';

const KV = 'KVCache';
const CHUNKED = 'ChunkedKVCache';
const RING = 'RotatingKVCache';
const ARRAYS = 'ArraysCache';

/** Cache class of each layer. */
export const FAMILIES: Readonly<Record<string, readonly string[]>> = {
  llama: [KV, KV, KV],
  'llama-tied': [KV, KV, KV],
  mistral: [RING, KV, RING],
  qwen2: [KV, KV, KV],
  qwen3: [KV, KV, KV],
  'qwen3-4bit': [KV, KV, KV],
  qwen3_moe: [KV, KV, KV],
  gemma3_text: [RING, RING, KV, RING],
  gpt_oss: [RING, KV, RING, KV],
  qwen3_5: [ARRAYS, KV, ARRAYS, KV],
  qwen3_next: [ARRAYS, ARRAYS, KV],
  deepseek_v3: [KV, KV],
  deepseek_v32: [KV, KV],
  deepseek_v41: ['LayerCache', 'LayerCache', 'LayerCache', 'LayerCache'],
  llama4: [CHUNKED, CHUNKED, CHUNKED, KV],
  mamba2: [ARRAYS, ARRAYS],
  falcon_h1: [ARRAYS, KV, ARRAYS, KV],
};

export function familyDir(family: string): string {
  return join(ROOT, 'test/fixtures/models', `tiny-${family}`);
}

/**
 * Golden answers that hang on one rounding. deepseek_v41 rounds what it caches to e4m3; in layer 1, the tenth token of the first
 * prompt has a value 3e-6 away from the middle of two, and which of them it becomes is for the BLAS's order of sums. Up to
 * there the tokens are compared.
 */
export const NEAR_TIES: Readonly<Record<string, Readonly<Record<number, number>>>> = { deepseek_v41: { 0: 10 } };
