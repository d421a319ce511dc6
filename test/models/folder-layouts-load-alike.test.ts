// The same weights must give the same logits however a folder stores them: sharded, flat, renamed, not converted, in other types.
import { copyFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { emptyFolder, float32Tensor, numbersOf, type Parts, renamed, TINY, tinyParts, writeFolder, zeros } from './model-folder.ts';
import { difference, scenario } from './scenario.ts';

interface Result {
  logits: number[];
  warnings: string[];
  progress: [number, number][];
  info: { parameterBytes: number; dtype: string };
}
const ids = [26, 119, 10, 63, 225, 7, 7, 300, 41];
const decode = [12, 99];
const run = (dir: string, compute = 'float32') => scenario<Result>('folder-scenarios.mjs', 'logits', { dir, ids, decode, compute });

const prefixed = (from: string, to: string) => (name: string) => name.replace(from, to);

const layouts: [string, () => { parts: Parts; shards?: number }][] = [
  ['three shards with an index', () => ({ parts: tinyParts(), shards: 3 })],
  [
    'flat configuration, names without language_model',
    () => {
      const { config, tensors } = tinyParts();
      return { parts: { config: config.text_config, tensors: renamed(tensors, prefixed('language_model.model.', 'model.')) } };
    },
  ],
  [
    'flat configuration of type qwen3_5, bare names',
    () => {
      const { config, tensors } = tinyParts();
      return { parts: { config: { ...config.text_config, model_type: 'qwen3_5' }, tensors: renamed(tensors, prefixed('language_model.model.', '')) } };
    },
  ],
  [
    'as published: model.language_model, convolution and norms not converted',
    () => {
      const { config, tensors } = tinyParts();
      for (const [name, tensor] of tensors) {
        if (name.endsWith('conv1d.weight')) tensor.shape = [tensor.shape[0]!, 1, tensor.shape[1]!];
        if (/(input_layernorm|post_attention_layernorm|q_norm|k_norm|model\.norm)\.weight$/.test(name)) {
          tensors.set(
            name,
            float32Tensor(
              numbersOf(tensor).map((x) => x - 1),
              tensor.shape,
            ),
          );
        }
      }
      return { parts: { config, tensors: renamed(tensors, prefixed('language_model.model.', 'model.language_model.')) } };
    },
  ],
  [
    'float32 tensors',
    () => {
      const { config, tensors } = tinyParts();
      for (const [name, tensor] of tensors) tensors.set(name, float32Tensor(numbersOf(tensor), tensor.shape));
      return { parts: { config, tensors } };
    },
  ],
  [
    'a head of its own with the same weights',
    () => {
      const { config, tensors } = tinyParts();
      config.text_config.tie_word_embeddings = config.tie_word_embeddings = false;
      tensors.set('language_model.lm_head.weight', tensors.get('language_model.model.embed_tokens.weight')!);
      return { parts: { config, tensors } };
    },
  ],
  [
    'layer types left out',
    () => {
      const { config, tensors } = tinyParts();
      delete config.text_config.layer_types;
      return { parts: { config, tensors } };
    },
  ],
];

describe('equal logits', () => {
  test.each(layouts)('%s', async (_, make) => {
    const { parts, shards } = make();
    const [expected, result] = [await run(TINY), await run(writeFolder(parts, shards))];
    expect(difference(result.logits, expected.logits)).toBeLessThan(1e-5);
    expect(result.warnings).toEqual([]);
  });
});

test('weights in float16 load and are computed as stored', async () => {
  const { config, tensors } = tinyParts();
  for (const tensor of tensors.values()) {
    if (tensor.dtype !== 'BF16') continue;
    Object.assign(tensor, { dtype: 'F16', bytes: new Uint8Array(Uint16Array.from(numbersOf(tensor), toHalf).buffer) });
  }
  const dir = writeFolder({ config, tensors });
  const expected = await run(TINY);
  const float32 = await run(dir);
  expect(difference(float32.logits, expected.logits)).toBeLessThan(0.05); // bfloat16 has a larger range
  const stored = await run(dir, 'model');
  expect(stored.info.dtype).toBe('float16');
  expect(difference(stored.logits, expected.logits)).toBeLessThan(0.5);
});

test('progress goes up to all bytes of the weights that are used', async () => {
  const { progress, info } = await run(TINY);
  const [bytes, total] = progress.at(-1)!;
  expect(bytes).toBe(total);
  expect(progress.map(([n]) => n)).toEqual(progress.map(([n]) => n).sort((a, b) => a - b));
  expect(info.parameterBytes).toBeGreaterThan(total);
});

describe('what is left out is said', () => {
  test('vision tower, multi-token prediction, unknown tensors, an unused head', async () => {
    const { config, tensors } = tinyParts();
    for (const name of [
      'vision_tower.blocks.0.weight',
      'model.visual.patch.weight',
      'mtp.layers.0.weight',
      'language_model.model.extra.weight',
      'lm_head.weight',
    ]) {
      tensors.set(name, zeros('BF16', [2, 2]));
    }
    const { warnings, logits } = await run(writeFolder({ config, tensors }));
    expect(logits).toEqual((await run(TINY)).logits);
    expect(warnings).toHaveLength(3);
    expect(warnings.join('\n')).toMatch(/2 tensors.*vision[\s\S]*1 tensors.*mtp[\s\S]*1 tensors.*model\.extra\.weight/);
  });
});

describe('fingerprint', () => {
  const prints = (dirs: string[]) => scenario<string[]>('folder-scenarios.mjs', 'fingerprints', { dirs });

  test('the same files elsewhere, and under other shard names, are the same model', async () => {
    const copy = writeFolder(tinyParts());
    for (const name of ['config.json', 'model.safetensors']) copyFileSync(join(TINY, name), join(copy, name));
    const other = emptyFolder();
    for (const name of ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors']) copyFileSync(join(TINY, name), join(other, name));
    renameSync(join(other, 'model.safetensors'), join(other, 'model-b.safetensors'));
    const [a, b, c] = await prints([TINY, copy, other]);
    expect(a).toMatch(/^[0-9a-f]{64}$/);
    expect(b).toBe(a);
    expect(c).toBe(a);
  });

  test('[H86][H85] another layout of the layers, another number of them, another quantization: another model, whose blocks are not looked at', async () => {
    const types = tinyParts();
    types.config.text_config.layer_types = [...types.config.text_config.layer_types].reverse();
    const fewer = tinyParts();
    fewer.config.text_config.num_hidden_layers -= 1;
    const bits = (quantization: object) => {
      const parts = tinyParts();
      parts.config.quantization = quantization;
      return parts;
    };
    const all = [tinyParts(), types, fewer, bits({ bits: 4, group_size: 32 }), bits({ bits: 8, group_size: 32 }), bits({ bits: 4, group_size: 64 })];
    const printed = await prints(all.map((parts) => writeFolder(parts)));
    expect(new Set(printed).size).toBe(all.length);
    // The same once more: a later look does not change it.
    expect(await prints([writeFolder(types)])).toEqual([printed[1]]);
  });

  test('a changed weight, configuration or tokenizer is another model', async () => {
    const weight = tinyParts();
    weight.tensors.get('language_model.model.norm.weight')!.bytes[5]! ^= 1;
    const large = tinyParts();
    large.tensors.get('language_model.model.embed_tokens.weight')!.bytes[0]! ^= 1;
    const config = tinyParts();
    config.config.text_config.rms_norm_eps = 1e-5;
    const tokenizer = writeFolder(tinyParts());
    copyFileSync(join(TINY, '../../../../models/tide-5m/tokenizer.json'), join(tokenizer, 'tokenizer.json'));
    const all = await prints([writeFolder(tinyParts()), writeFolder(weight), writeFolder(large), writeFolder(config), tokenizer, writeFolder(tinyParts(), 2)]);
    expect(new Set(all).size).toBe(all.length);
  });
});

/** Nearest float16 of a number that is neither huge nor tiny. */
function toHalf(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0]!;
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  if (exponent <= 0) return sign;
  return sign | ((exponent << 10) + ((bits >>> 13) & 0x3ff) + ((bits >>> 12) & 1));
}
