/**
 * Kinds of RoPE scaling: how contexts longer than a model was trained for slow its rotations down. Each gives the period
 * of every pair of dimensions, in tokens for one radian; unscaled, pair i has base^(2i / dims).
 */
import type { ConfigReader } from './config-reader.ts';

function plainPeriods(dims: number, base: number): number[] {
  return Array.from({ length: dims / 2 }, (_, i) => base ** Math.fround((2 * i) / dims));
}

/** Slow pairs by the factor, fast ones not at all, those between by a blend. */
export function llama3Periods(section: ConfigReader, dims: number, base: number): number[] {
  const factor = section.number('factor', { min: 1e-6 });
  const low = section.number('low_freq_factor', { min: 1e-6 }, 1);
  const high = section.number('high_freq_factor', { min: 1e-6 }, 4);
  const original = section.int('original_max_position_embeddings', {}, 8192);
  if (high <= low) throw section.error('high_freq_factor', `a number above low_freq_factor (${low})`, high);
  return plainPeriods(dims, base).map((period) => {
    const turns = original / (2 * Math.PI * period);
    if (turns < low) return period * factor;
    if (turns >= high) return period;
    const smooth = (turns - low) / (high - low);
    return period / ((1 - smooth) / factor + smooth);
  });
}

/** As `llama3`, with the blend linear in the pair's number. */
export function yarnPeriods(section: ConfigReader, dims: number, base: number): number[] {
  const factor = section.number('factor', { min: 1e-6 });
  const original = section.int('original_max_position_embeddings', {}, 4096);
  const pairThatTurns = (times: number) => (dims * Math.log(original / (times * 2 * Math.PI))) / (2 * Math.log(base));
  const low = Math.max(Math.floor(pairThatTurns(section.number('beta_fast', { min: 1e-6 }, 32))), 0);
  const high = Math.min(Math.ceil(pairThatTurns(section.number('beta_slow', { min: 1e-6 }, 1))), dims - 1);
  const width = high === low ? 0.001 : high - low;
  return plainPeriods(dims, base).map((period, i) => {
    const slowed = Math.min(Math.max((i - low) / width, 0), 1);
    return (factor * period) / (factor * (1 - slowed) + slowed);
  });
}

function mscaleOf(factor: number, weight: number): number {
  return factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1;
}

/** What yarn multiplies rotated vectors by. */
export function yarnMscale(section: ConfigReader): number {
  const factor = section.number('factor', { min: 1e-6 });
  return mscaleOf(factor, section.number('mscale', {}, 1)) / mscaleOf(factor, section.number('mscale_all_dim', {}, 0));
}

/** What some families multiply their attention scale by where RoPE is scaled by yarn. */
export function attentionMscale(section: ConfigReader | null): number {
  const weight = section?.number('mscale_all_dim', {}, 0) ?? 0;
  return section === null || weight === 0 ? 1 : mscaleOf(section.number('factor', { min: 1e-6 }, 1), weight) ** 2;
}

/** A factor for each pair; those for long contexts at any length, so that a sequence does not change on its way. */
export function longPeriods(section: ConfigReader, dims: number, base: number): number[] {
  const given = section.raw('long_factor') ?? 1;
  const factors = Array.isArray(given) ? given : new Array<unknown>(dims / 2).fill(given);
  if (factors.length !== dims / 2 || !factors.every((factor) => typeof factor === 'number' && factor > 0)) {
    throw section.error('long_factor', `${dims / 2} positive numbers`, given);
  }
  return plainPeriods(dims, base).map((period, i) => period * (factors[i] as number));
}

/** `original_max_position_embeddings` may stand in either place. */
export function longScale(section: ConfigReader, text: ConfigReader): number {
  const holder = section.raw('original_max_position_embeddings') === undefined ? text : section;
  const original = holder.int('original_max_position_embeddings', { min: 2 }, 4096);
  const factor = text.int('max_position_embeddings', {}, 131_072) / original;
  return factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original));
}

/** Pairs span the whole head; those behind the first `rotated` dimensions never turn. */
export function proportionalPeriods(section: ConfigReader, dims: number, rotated: number, base: number): number[] {
  const factor = section.number('factor', { min: 1e-6 }, 1);
  return plainPeriods(dims, base).map((period, i) => (2 * i < rotated ? factor * period : Infinity));
}

export function dynamicOf(section: ConfigReader, from: number): { factor: number; from: number } {
  return { factor: section.number('factor', { min: 1e-6 }), from };
}
