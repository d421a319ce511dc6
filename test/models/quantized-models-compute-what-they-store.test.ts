// A quantized folder must compute as if its unpacked weights were stored plain, for one row and for many, also with layers that differ.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type Config, numbersOf, type Parts, type StoredTensor, type Tensors, tinyParts, writeFolder } from './model-folder.ts';
import { difference, scenario } from './scenario.ts';

interface Packed {
  shape: number[];
  dtype: keyof typeof STORED;
  bytes: Uint8Array;
}
interface Spec {
  bits: number;
  groupSize: number;
}

const STORED = { uint32: 'U32', float32: 'F32', bfloat16: 'BF16' };
const stored = ({ shape, dtype, bytes }: Packed): StoredTensor => ({ dtype: STORED[dtype], shape, bytes });

/** The tiny model with its matrices quantized, and the same model with what they unpack to. */
async function quantized(specOf: (path: string) => Spec | null, base: Spec, dtype = 'float32'): Promise<{ packed: Parts; plain: Parts }> {
  const { config, tensors } = tinyParts();
  const paths = [...tensors.keys()].filter((name) => /(proj|proj_\w+|embed_tokens)\.weight$/.test(name)).map((name) => name.slice(0, -'.weight'.length));
  const chosen = paths.map((path) => ({ path, spec: specOf(path) }));
  const matrices = chosen
    .filter(({ spec }) => spec !== null)
    .map(({ path, spec }) => ({ values: numbersOf(tensors.get(`${path}.weight`)!), shape: tensors.get(`${path}.weight`)!.shape, ...spec }));
  const results = await scenario<Packed[][]>('folder-scenarios.mjs', 'quantize', { matrices, dtype });

  const quantization: Config = { group_size: base.groupSize, bits: base.bits };
  const packed: Tensors = new Map(tensors);
  const plain: Tensors = new Map(tensors);
  for (const { path, spec } of chosen) {
    if (spec === null) {
      quantization[path] = false;
      continue;
    }
    const [codes, scales, biases, unpacked] = results.shift()!.map(stored);
    packed.set(`${path}.weight`, codes!).set(`${path}.scales`, scales!).set(`${path}.biases`, biases!);
    plain.set(`${path}.weight`, unpacked!);
    if (spec.bits !== base.bits || spec.groupSize !== base.groupSize) quantization[path] = { group_size: spec.groupSize, bits: spec.bits };
  }
  return { packed: { config: { ...config, quantization }, tensors: packed }, plain: { config, tensors: plain } };
}

// One row at a time, up to the limit of MLX's quantized product, and beyond it.
const prompts = [[26], [26, 119, 10, 63, 225, 7, 7, 300], Array.from({ length: 40 }, (_, i) => (i * 53) % 320)];

async function expectAlike({ packed, plain }: { packed: Parts; plain: Parts }): Promise<void> {
  const [a, b] = [writeFolder(packed), writeFolder(plain)];
  for (const ids of prompts) {
    const run = (dir: string) => scenario<{ logits: number[]; warnings: string[] }>('folder-scenarios.mjs', 'logits', { dir, ids, decode: [12, 99, 3] });
    const result = await run(a);
    expect(difference(result.logits, (await run(b)).logits)).toBeLessThan(2e-4);
    expect(result.warnings).toEqual([]);
  }
}

describe('equal to the unpacked weights', () => {
  test.each([
    { bits: 4, groupSize: 32 },
    { bits: 8, groupSize: 64 },
    { bits: 2, groupSize: 64 },
  ])('$bits bits in groups of $groupSize', async (spec) => {
    await expectAlike(await quantized(() => spec, spec));
  });

  test('parts that are joined are packed differently, one is not packed', async () => {
    const base = { bits: 4, groupSize: 64 };
    const specOf = (path: string) => {
      if (path.endsWith('k_proj')) return null;
      if (path.endsWith('gate_proj') || path.endsWith('in_proj_b')) return { bits: 8, groupSize: 32 };
      return base;
    };
    await expectAlike(await quantized(specOf, base));
  });
});

test('the stored type is kept where it is asked for', async () => {
  const spec = { bits: 8, groupSize: 64 };
  const { packed } = await quantized(() => spec, spec, 'bfloat16');
  const dir = writeFolder(packed);
  const ids = prompts[2];
  const run = (compute: string) => scenario<{ logits: number[]; info: { dtype: string } }>('folder-scenarios.mjs', 'logits', { dir, ids, compute });
  const [model, float32] = [await run('model'), await run('float32')];
  expect(model.info.dtype).toBe('bfloat16');
  expect(difference(model.logits, float32.logits)).toBeLessThan(1.5);
});

test('a configuration that does not fit the packed tensors names both', async () => {
  const { packed } = await quantized(() => ({ bits: 4, groupSize: 32 }), { bits: 4, groupSize: 32 });
  packed.config.quantization = { bits: 8, group_size: 32 };
  const dir = writeFolder(packed);
  writeFileSync(join(dir, 'note.txt'), 'other files do not matter');
  const error = await scenario('folder-scenarios.mjs', 'load', { dir }).catch((caught) => caught);
  expect(error).toMatchObject({
    code: 'MODEL_TENSOR_SHAPE',
    message: expect.stringMatching(/embed_tokens\.weight: expected U32 \[320, 16\], received U32 \[320, 8\]/),
  });
});
