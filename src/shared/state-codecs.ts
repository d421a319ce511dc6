/**
 * How the float32 recurrent state of a layer may be stored. Every codec but 'fp32' loses precision: what is restored is
 * close to what was captured, not equal.
 */
export const STATE_CODECS = ['fp32', 'bf16', 'int8', 'rotated-int8', 'rotated-int16'] as const;
export type StateCodec = (typeof STATE_CODECS)[number];
