/** Which layers of DeepSeek V4.1 pool, which pick, and for whom, as configured. */
import type { ConfigReader } from '../config-reader.ts';

export interface V41Layer {
  /** Tokens of a pooled group that this layer looks at; 0: its window is all. */
  readonly ratio: number;
  readonly pools: boolean;
  readonly picks: boolean;
  /** Narrows the choice of the layers behind it. */
  readonly candidates: { readonly blocks: number; readonly size: number } | null;
}

export function readV41Layers(text: ConfigReader, count: number): V41Layer[] {
  const engrams = numbers(text, 'engram_layer_ids');
  if (engrams.length > 0) throw text.error('engram_layer_ids', 'none: n-gram memory is not supported', engrams);
  const ratios = numbers(text, 'compress_ratios');
  const pooling = numbers(text, 'kv_source_layer_ids');
  const picking = numbers(text, 'index_source_layer_ids');
  const source = text.int('candidate_source_layer_id', { min: -1 }, -1);
  const blocks = text.int('candidate_topk_blocks', { min: 0 }, 2048);
  const size = text.int('candidate_block_size', {}, 8);
  return Array.from({ length: count }, (_, i) => {
    const ratio = ratios[i] ?? 0;
    const pools = ratio > 0 && pooling.includes(i);
    const picks = ratio > 0 && picking.includes(i);
    if (ratio === 1 && pools) throw text.error('compress_ratios', 'groups of more than one token', ratios);
    const before = pooling.filter((layer) => layer <= i).at(-1);
    if (ratio > 0 && (before === undefined || ratios[before] !== ratio)) {
      throw text.error('kv_source_layer_ids', `a layer up to ${i} that pools groups of ${ratio}`, pooling);
    }
    return { ratio, pools, picks, candidates: picks && i === source && blocks > 0 ? { blocks, size } : null };
  });
}

function numbers(text: ConfigReader, field: string): number[] {
  const value = text.raw(field) ?? [];
  if (Array.isArray(value) && value.every((entry) => Number.isInteger(entry) && (entry as number) >= 0)) return value as number[];
  throw text.error(field, 'a list of whole numbers', value);
}
