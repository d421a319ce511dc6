/** Rotary position embedding as configured: which dimensions turn, and how fast. */
import type { ConfigReader } from './config-reader.ts';
import { dynamicOf, llama3Periods, longPeriods, longScale, proportionalPeriods, yarnMscale, yarnPeriods } from './rope-scaling.ts';

export interface RopeConfig {
  /** Leading dimensions of a head that are rotated. */
  readonly dims: number;
  readonly base: number;
  /** Positions are multiplied by this (linear scaling). */
  readonly scale: number;
  /** Pairs are neighbours (2i, 2i + 1) instead of halves (i, i + dims / 2). */
  readonly traditional?: boolean;
  /** Tokens for one radian of each pair, where it is not base^(2i / dims). */
  readonly periods?: readonly number[];
  /** What is rotated is multiplied by this. */
  readonly mscale?: number;
  /** The base grows with the sequence, once that is longer than `from`. */
  readonly dynamic?: { readonly factor: number; readonly from: number };
}

export interface RopeDefaults {
  readonly theta?: number;
  readonly partial?: number;
  readonly traditional?: boolean;
  /** `dims` of a head; all of them by default, or what `partial_rotary_factor` leaves. */
  readonly dims?: number;
  /** Where the scaling is described, if not under `rope_parameters` or `rope_scaling`; null: nowhere. */
  readonly section?: ConfigReader | null;
}

const KINDS = ['default', 'linear', 'dynamic', 'llama3', 'yarn', 'deepseek_yarn', 'telechat3-yarn', 'longrope', 'su', 'proportional', 'mrope'] as const;

/**
 * `rope_parameters` (or the older `rope_scaling`, `rope_theta`, `partial_rotary_factor` beside each other).
 *
 * @param text the text section of config.json
 * @throws {TidemarkError} MODEL_CONFIG_INVALID, also for scaling types that are not implemented
 */
export function readRope(text: ConfigReader, headDim: number, defaults: RopeDefaults = {}): RopeConfig {
  const section = defaults.section === undefined ? (text.section('rope_parameters') ?? text.section('rope_scaling')) : defaults.section;
  const theta = text.number('rope_theta', { min: 1 }, defaults.theta ?? 10_000);
  const base = section?.number('rope_theta', { min: 1 }, theta) ?? theta;
  const field = section?.raw('type') === undefined ? 'rope_type' : 'type';
  // 'mrope' turns the same way for text: its three position axes are equal there.
  const kind = section?.word(field, KINDS, 'default') ?? 'default';
  const partial = text.number('partial_rotary_factor', { min: 0, max: 1 }, defaults.partial ?? 1);
  const rotated = section?.number('partial_rotary_factor', { min: 0, max: 1 }, partial) ?? partial;
  // Proportional: all dimensions are pairs, the slowest of which stand still.
  const dims = defaults.dims ?? Math.trunc(kind === 'proportional' ? headDim : headDim * rotated);
  if (dims < 2 || dims % 2 !== 0) {
    throw (section ?? text).error('partial_rotary_factor', `a factor that rotates an even number of the ${headDim} dimensions of a head`, rotated);
  }
  const plain: RopeConfig = { dims, base, scale: 1, ...(text.bool('rope_traditional', defaults.traditional ?? false) ? { traditional: true } : {}) };
  if (section === null) return plain;
  switch (kind) {
    case 'linear':
      return { ...plain, scale: 1 / section.number('factor', { min: 1e-6 }) };
    case 'dynamic':
      return { ...plain, dynamic: dynamicOf(section, text.int('max_position_embeddings', {}, 2048)) };
    case 'llama3':
      return { ...plain, periods: llama3Periods(section, dims, base) };
    case 'yarn':
    case 'deepseek_yarn':
    case 'telechat3-yarn':
      return { ...plain, periods: yarnPeriods(section, dims, base), mscale: yarnMscale(section) };
    case 'longrope':
    case 'su':
      return { ...plain, periods: longPeriods(section, dims, base), mscale: longScale(section, text) };
    case 'proportional':
      return { ...plain, periods: proportionalPeriods(section, dims, Math.trunc(dims * rotated), base) };
    default:
      return plain;
  }
}
