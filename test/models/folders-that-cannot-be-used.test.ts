// Every wrong folder must be refused with a code and the name of what is wrong, before a single weight is read.
import { readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type Config, emptyFolder, type Parts, type Tensors, tinyParts, writeFolder, zeros } from './model-folder.ts';
import { scenario } from './scenario.ts';

const L0 = 'language_model.model.layers.0.';

/** A folder with changed parts. */
const changed = (change: (parts: Parts) => unknown, shards?: number) => () => {
  const parts = tinyParts();
  change(parts);
  return writeFolder(parts, shards);
};
/** Fields of text_config, and of the top level; `undefined` removes one. */
const text = (fields: Config) => changed((parts) => Object.assign(parts.config.text_config, fields));
const top = (fields: Config) => changed((parts) => Object.assign(parts.config, fields));
const tensors = (change: (tensors: Tensors) => unknown) => changed((parts) => change(parts.tensors));
/** A sound folder with changed files. */
const files =
  (change: (dir: string) => void, shards = 1) =>
  () => {
    const dir = writeFolder(tinyParts(), shards);
    change(dir);
    return dir;
  };
const weights = (dir: string) => join(dir, 'model.safetensors');
const header = (change: (json: Record<string, { dtype: string; shape: unknown; data_offsets: unknown }>) => unknown) =>
  files((dir) => {
    const file = readFileSync(weights(dir));
    const length = Number(file.readBigUInt64LE(0));
    const json = JSON.parse(file.subarray(8, 8 + length).toString());
    const replaced = change(json) ?? json;
    const text = Buffer.from(typeof replaced === 'string' ? replaced : JSON.stringify(replaced));
    const prefix = Buffer.alloc(8);
    prefix.writeBigUInt64LE(BigInt(text.length));
    writeFileSync(weights(dir), Buffer.concat([prefix, text, file.subarray(8 + length)]));
  });
/** Changes one tensor's entry in place. */
function assign(json: Record<string, object>, fields: object): void {
  Object.assign(json[A_LOG]!, fields);
}
const index = (change: (map: Record<string, string>) => unknown) =>
  files((dir) => {
    const path = join(dir, 'model.safetensors.index.json');
    const json = JSON.parse(readFileSync(path, 'utf8'));
    const replaced = change(json.weight_map);
    writeFileSync(path, JSON.stringify({ weight_map: replaced ?? json.weight_map }));
  }, 2);
const A_LOG = `${L0}linear_attn.A_log`;

const cases: [what: string, code: string, message: RegExp, make: () => string][] = [
  ['no such folder', 'MODEL_NOT_FOUND', /does not exist/, () => join(emptyFolder(), 'nowhere')],
  ['a file', 'MODEL_NOT_FOUND', /not a folder/, () => join(writeFolder(tinyParts()), 'config.json')],
  ['an empty folder', 'MODEL_NOT_FOUND', /config\.json/, emptyFolder],
  ['no weights', 'MODEL_NOT_FOUND', /\.safetensors/, files((dir) => rmSync(weights(dir)))],

  ['config.json cut', 'MODEL_CONFIG_INVALID', /not valid JSON/, files((dir) => truncateSync(join(dir, 'config.json'), 40))],
  ['config.json a list', 'MODEL_CONFIG_INVALID', /JSON object/, files((dir) => writeFileSync(join(dir, 'config.json'), '[1]'))],
  ['no model_type', 'MODEL_CONFIG_INVALID', /model_type/, top({ model_type: undefined })],
  ['another architecture', 'MODEL_TYPE_UNSUPPORTED', /"bert".*qwen3_5, qwen3_5_text/, top({ model_type: 'bert' })],
  ['a size missing', 'MODEL_CONFIG_INVALID', /text_config\.hidden_size: expected an integer.*received nothing/, text({ hidden_size: undefined })],
  ['a size of text', 'MODEL_CONFIG_INVALID', /text_config\.vocab_size.*received "many"/, text({ vocab_size: 'many' })],
  ['a negative size', 'MODEL_CONFIG_INVALID', /num_hidden_layers/, text({ num_hidden_layers: -1 })],
  ['a fraction', 'MODEL_CONFIG_INVALID', /linear_key_head_dim/, text({ linear_key_head_dim: 16.5 })],
  ['heads that do not divide', 'MODEL_CONFIG_INVALID', /num_key_value_heads: expected a divisor/, text({ num_key_value_heads: 3 })],
  ['value heads that do not divide', 'MODEL_CONFIG_INVALID', /linear_num_value_heads/, text({ linear_num_value_heads: 5 })],
  [
    'too few layer types',
    'MODEL_CONFIG_INVALID',
    /layer_types: expected a list of 4/,
    text({ layer_types: ['linear_attention', 'full_attention', 'linear_attention'] }),
  ],
  [
    'an unknown layer type',
    'MODEL_CONFIG_INVALID',
    /layer_types/,
    text({ layer_types: ['linear_attention', 'sliding_attention', 'linear_attention', 'full_attention'] }),
  ],
  ['an unknown rope', 'MODEL_CONFIG_INVALID', /rope_parameters\.rope_type: expected one of/, text({ rope_parameters: { rope_type: 'spiral' } })],
  ['yarn without a factor', 'MODEL_CONFIG_INVALID', /rope_parameters\.factor: expected a number/, text({ rope_parameters: { rope_type: 'yarn' } })],
  ['a factor of text', 'MODEL_CONFIG_INVALID', /rope_parameters\.factor.*received "two"/, text({ rope_parameters: { rope_type: 'linear', factor: 'two' } })],
  ['an odd rope width', 'MODEL_CONFIG_INVALID', /partial_rotary_factor/, text({ rope_parameters: { partial_rotary_factor: 0.1 } })],
  ['experts', 'MODEL_CONFIG_INVALID', /num_experts/, text({ num_experts: 8 })],
  ['another activation', 'MODEL_CONFIG_INVALID', /hidden_act/, text({ hidden_act: 'gelu' })],

  ['a foreign quantization', 'MODEL_QUANTIZATION_UNSUPPORTED', /gptq/, top({ quantization_config: { quant_method: 'gptq', bits: 4 } })],
  [
    'mxfp4 with other bits',
    'MODEL_CONFIG_INVALID',
    /quantization\.bits: expected one of 4 with mode mxfp4/,
    top({ quantization: { mode: 'mxfp4', bits: 8, group_size: 32 } }),
  ],
  ['another mode', 'MODEL_QUANTIZATION_UNSUPPORTED', /quantization\.mode.*nvfp4/, top({ quantization: { mode: 'nvfp4', bits: 4, group_size: 32 } })],
  ['odd bits', 'MODEL_CONFIG_INVALID', /quantization\.bits: expected one of 2, 3/, top({ quantization: { bits: 7, group_size: 32 } })],
  ['an odd group', 'MODEL_CONFIG_INVALID', /quantization\.group_size/, top({ quantization: { bits: 4, group_size: 48 } })],
  [
    'scales but no quantization section',
    'MODEL_CONFIG_INVALID',
    /quantization section is missing/,
    tensors((all) => all.set(`${L0}mlp.up_proj.scales`, zeros('BF16', [128, 2]))),
  ],

  ['a tensor missing', 'MODEL_TENSOR_MISSING', /layers\.0\.linear_attn\.A_log is missing/, tensors((all) => all.delete(A_LOG))],
  ['the head missing', 'MODEL_TENSOR_MISSING', /lm_head\.weight/, text({ tie_word_embeddings: false })],
  ['a wrong shape', 'MODEL_TENSOR_SHAPE', /A_log: expected F16\/BF16\/F32 \[4\], received F32 \[5\]/, tensors((all) => all.set(A_LOG, zeros('F32', [5])))],
  ['a wrong type', 'MODEL_TENSOR_SHAPE', /received I32 \[4\]/, tensors((all) => all.set(A_LOG, { ...zeros('F32', [4]), dtype: 'I32' }))],
  ['another size in config.json', 'MODEL_TENSOR_SHAPE', /expected .*\[320, 96\].*received BF16 \[320, 64\]/, text({ hidden_size: 96 })],
  ['the same parameter twice', 'MODEL_FILE_INVALID', /same parameter/, tensors((all) => all.set('model.norm.weight', zeros('BF16', [64])))],

  ['weights cut in the data', 'MODEL_FILE_TRUNCATED', /download is incomplete/, files((dir) => truncateSync(weights(dir), 300_000))],
  ['weights cut in the header', 'MODEL_FILE_TRUNCATED', /its header/, files((dir) => truncateSync(weights(dir), 100))],
  ['weights of 4 bytes', 'MODEL_FILE_TRUNCATED', /its header/, files((dir) => truncateSync(weights(dir), 4))],
  [
    'a Git LFS pointer',
    'MODEL_FILE_INVALID',
    /git lfs pull/,
    files((dir) => writeFileSync(weights(dir), 'version https://git-lfs.github.com/spec/v1\noid sha256:0\n')),
  ],
  ['a header that is not JSON', 'MODEL_FILE_INVALID', /not valid JSON/, header(() => '{"a":')],
  ['a header that is a list', 'MODEL_FILE_INVALID', /not a JSON object/, header(() => '[]')],
  ['an unknown element type', 'MODEL_FILE_INVALID', /F8_E4M3/, header((json) => assign(json, { dtype: 'F8_E4M3' }))],
  ['a shape that is not one', 'MODEL_FILE_INVALID', /shape \[-4\]/, header((json) => assign(json, { shape: [-4] }))],
  ['offsets that do not fit the shape', 'MODEL_FILE_INVALID', /needs 16/, header((json) => assign(json, { data_offsets: [0, 8] }))],
  ['offsets behind the end', 'MODEL_FILE_TRUNCATED', /A_log/, header((json) => assign(json, { data_offsets: [9_000_000, 9_000_016] }))],
  ['tensors that overlap', 'MODEL_FILE_INVALID', /overlap/, header((json) => assign(json, { data_offsets: [0, 16] }))],

  ['an index without its map', 'MODEL_FILE_INVALID', /weight_map/, index(() => [])],
  ['a shard missing', 'MODEL_TENSOR_MISSING', /model-00002-of-00002.*does not exist/, files((dir) => rmSync(join(dir, 'model-00002-of-00002.safetensors')), 2)],
  [
    'a tensor in another shard',
    'MODEL_TENSOR_MISSING',
    /says that/,
    index((map) => ({ ...map, [A_LOG]: Object.values(map).find((file) => file !== map[A_LOG]) })),
  ],
  ['a shard elsewhere', 'MODEL_FILE_INVALID', /lie beside the index/, index((map) => ({ ...map, [A_LOG]: '../other.safetensors' }))],
];

test.each(cases)('%s is %s', async (_, code, message, make) => {
  const error = await scenario('folder-scenarios.mjs', 'load', { dir: make() }).catch((caught) => caught);
  expect(error).toMatchObject({ code, message: expect.stringMatching(message), details: { read: 0, leaked: 0 } });
});

test('a file that is cut while it is read is MODEL_FILE_TRUNCATED, and what was loaded is freed', async () => {
  const dir = writeFolder(tinyParts());
  expect(await scenario('folder-scenarios.mjs', 'cutWhileLoading', { dir, file: weights(dir) })).toBe('MODEL_FILE_TRUNCATED');
});
