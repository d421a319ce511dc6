/** What each reduced-precision codec stores. docs/format.md says the same for readers of files. */
import type { Dtype } from '../../../shared/layer-state.ts';
import type { StateCodec } from '../../../shared/state-codecs.ts';

export interface CodecSpec {
  /** Type of the stored values. */
  readonly payload: Dtype;
  /** Integers run from -limit to limit, times the row's scale; null: no scale. */
  readonly limit: number | null;
  /** Rows are rotated first, so that one large value does not set the scale for all. */
  readonly rotated: boolean;
}

export type ReducedCodec = Exclude<StateCodec, 'fp32'>;

export const CODEC_SPECS: Readonly<Record<ReducedCodec, CodecSpec>> = {
  bf16: { payload: 'BF16', limit: null, rotated: false },
  int8: { payload: 'I8', limit: 127, rotated: false },
  'rotated-int8': { payload: 'I8', limit: 127, rotated: true },
  'rotated-int16': { payload: 'I16', limit: 32767, rotated: true },
};

/** The one type that is encoded. */
export const SOURCE_DTYPE = 'F32';

/** Shape of the scales of a payload: one for each row of the last axis. */
export function scaleShape(shape: readonly number[]): number[] {
  return [...shape.slice(0, -1), 1];
}

/** Rows of the last axis, and how wide they are. */
export function rowsAndWidth(shape: readonly number[]): { rows: number; width: number } {
  return { rows: shape.slice(0, -1).reduce((product, extent) => product * extent, 1), width: shape.at(-1) ?? 0 };
}
