/** Head counts as configured. */
import type { ConfigReader } from './config-reader.ts';

export interface Heads {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/** @throws {TidemarkError} MODEL_CONFIG_INVALID when they do not divide each other or the hidden size */
export function readHeads(text: ConfigReader, hidden: number, headDimDefault?: number): Heads {
  const heads = text.int('num_attention_heads', { max: 1 << 16 });
  const kvHeads = text.int('num_key_value_heads', { max: 1 << 16 }, heads);
  if (heads % kvHeads !== 0) throw text.error('num_key_value_heads', `a divisor of num_attention_heads (${heads})`, kvHeads);
  if (headDimDefault === undefined && (text.raw('head_dim') ?? null) === null && hidden % heads !== 0) {
    throw text.error('num_attention_heads', `a divisor of hidden_size (${hidden}), for there is no head_dim`, heads);
  }
  return { heads, kvHeads, headDim: text.int('head_dim', { max: 1 << 16 }, headDimDefault ?? hidden / heads) };
}
