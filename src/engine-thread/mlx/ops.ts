/**
 * MLX as plain functions over tensors. Every op takes its stream as the last, required argument; names are MLX's in camel case.
 * Importing this module loads the addon: it throws MLX_UNAVAILABLE where there is none.
 */

export * from './control.ts';
export * from './elementwise.ts';
export * from './fast.ts';
export * from './linear.ts';
export * from './memory.ts';
export * from './random.ts';
export * from './reduction.ts';
export * from './scope.ts';
export * from './shape.ts';
export * from './streams.ts';
export * from './transfer.ts';
export type * from './types.ts';
