/** Rotary position embedding as configured: which dimensions turn, and how fast. */
import type { ConfigReader } from './config-reader.ts';

export interface RopeConfig {
  /** Leading dimensions of a head that are rotated. */
  readonly dims: number;
  readonly base: number;
  /** Positions are multiplied by this (linear scaling). */
  readonly scale: number;
}

/**
 * `rope_parameters` (or the older `rope_scaling`, `rope_theta`, `partial_rotary_factor` beside each other).
 *
 * @param text the text section of config.json
 * @throws {TidemarkError} MODEL_CONFIG_INVALID, also for scaling types that are not implemented
 */
export function readRope(text: ConfigReader, headDim: number, defaults: { theta: number; partial: number }): RopeConfig {
  const section = text.section('rope_parameters') ?? text.section('rope_scaling');
  const theta = text.number('rope_theta', { min: 1 }, defaults.theta);
  const partial = text.number('partial_rotary_factor', { min: 0, max: 1 }, defaults.partial);
  const base = section?.number('rope_theta', { min: 1 }, theta) ?? theta;
  const factor = section?.number('partial_rotary_factor', { min: 0, max: 1 }, partial) ?? partial;
  const dims = Math.trunc(headDim * factor);
  if (dims < 2 || dims % 2 !== 0) {
    throw (section ?? text).error('partial_rotary_factor', `a factor that rotates an even number of the ${headDim} dimensions of a head`, factor);
  }
  let scale = 1;
  if (section !== null) {
    const field = section.raw('type') === undefined ? 'rope_type' : 'type';
    // 'mrope' turns the same way for text: its three position axes are equal there.
    const kind = section.word(field, ['default', 'linear', 'mrope'], 'default');
    if (kind === 'linear') scale = 1 / section.number('factor', { min: 1e-6 });
  }
  return { dims, base, scale };
}
