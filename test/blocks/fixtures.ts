/** Layer states and block specs over plain byte arrays, made from a seed so that failures repeat. */

import { ChainHasher } from '../../src/shared/blocks/identity.ts';
import type { ImageSpec } from '../../src/shared/blocks/image.ts';
import { DTYPE_BYTES, type Dtype, type LayerState, type StateElement, type TensorBytes } from '../../src/shared/layer-state.ts';

export const FINGERPRINT = 'f'.repeat(64);
export const EXTRA_KEYS = ['device:cpu', 'compute:float32'];

/** Deterministic bytes (xorshift). */
export function bytesOf(length: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let x = (seed * 2654435761 + 88172645) >>> 0 || 1;
  for (let i = 0; i < length; i += 1) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    bytes[i] = x;
  }
  return bytes;
}

export function tensor(dtype: Dtype, shape: number[], bytes: Uint8Array | number): TensorBytes {
  const byteLength = shape.reduce((a, b) => a * b, 1) * DTYPE_BYTES[dtype];
  const content = typeof bytes === 'number' ? bytesOf(byteLength, bytes) : bytes;
  return {
    dtype,
    shape,
    byteLength,
    copyTo: (target, from) => target.set(content.subarray(from, from + target.length)),
  };
}

export function contentOf(element: TensorBytes): Uint8Array {
  const bytes = new Uint8Array(element.byteLength);
  element.copyTo(bytes, 0);
  return bytes;
}

/** A state as plain data, for comparing. */
export function plain(layers: readonly LayerState[]): unknown {
  const element = (value: StateElement): unknown => {
    if (value === null || typeof value === 'number') return value;
    if (Array.isArray(value)) return value.map(element);
    const t = value as TensorBytes;
    return { dtype: t.dtype, shape: [...t.shape], bytes: Buffer.from(contentOf(t)).toString('hex') };
  };
  return layers.map((layer) => ({ ...layer, elements: layer.elements.map(element) }));
}

export function kvLayers(seed: number, start: number, end: number, width = 4): LayerState[] {
  const rows = end - start;
  return [
    { className: 'ArraysCache', stored: 'none', meta: [], elements: [] },
    {
      className: 'KVCache',
      stored: 'slice',
      range: [start, end],
      meta: [end, 256],
      elements: [tensor('F32', [1, 1, rows, width], seed), tensor('F32', [1, 1, rows, width], seed + 1)],
    },
  ];
}

export function stateLayers(seed: number): LayerState[] {
  return [
    { className: 'ArraysCache', stored: 'whole', meta: ['recurrent', 3, true], elements: [tensor('F32', [1, 3, 4], seed), tensor('BF16', [1, 5], seed + 1)] },
    { className: 'KVCache', stored: 'none', meta: [], elements: [] },
  ];
}

export function tokensOf(length: number, seed = 1): Uint32Array {
  return Uint32Array.from({ length }, (_, i) => (i * 7919 + seed * 104729) % 151936);
}

/** The specs of a chain's parts: full blocks, and the partial one at the end when there is a rest. */
export function chainSpecs(tokens: Uint32Array, blockSize: number): { kv: ImageSpec; state: ImageSpec }[] {
  const hasher = new ChainHasher({ fingerprint: FINGERPRINT, extraKeys: EXTRA_KEYS });
  const specs: { kv: ImageSpec; state: ImageSpec }[] = [];
  let parentHash = '';
  for (let start = 0; start < tokens.length; start += blockSize) {
    const end = Math.min(tokens.length, start + blockSize);
    const own = tokens.slice(start, end);
    const blockHash = hasher.block(parentHash, own);
    const common = { blockHash, parentHash, start, end, blockSize, tokens: own, fingerprint: FINGERPRINT };
    specs.push({ kv: { ...common, part: 'kv', layers: kvLayers(end, start, end) }, state: { ...common, part: 'state', layers: stateLayers(end) } });
    parentHash = blockHash;
  }
  return specs;
}
