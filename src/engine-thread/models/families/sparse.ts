/** Which layers have experts, and how many, as configured. */
import type { ConfigReader } from '../config-reader.ts';

/** @throws {TidemarkError} MODEL_CONFIG_INVALID when a token would pick more experts than there are */
export function readExperts(text: ConfigReader, field: string): { experts: number; perToken: number } {
  const experts = text.int(field, { max: 1 << 16 });
  return { experts, perToken: text.int('num_experts_per_tok', { max: experts }) };
}

/** Every `decoder_sparse_step`-th layer, without those in `mlp_only_layers`. */
export function sparseLayers(text: ConfigReader, count: number): boolean[] {
  const every = text.int('decoder_sparse_step', {}, 1);
  const dense = text.raw('mlp_only_layers') ?? [];
  if (!Array.isArray(dense) || !dense.every((layer) => Number.isInteger(layer))) throw text.error('mlp_only_layers', 'a list of layer numbers', dense);
  return Array.from({ length: count }, (_, i) => (i + 1) % every === 0 && !dense.includes(i));
}
