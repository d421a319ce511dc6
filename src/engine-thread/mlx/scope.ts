/**
 * Lifetime of handles. A step builds hundreds of tensors; inside a scope they are freed at its end, all but those given to `keep`. What lives
 * longer (weights, caches) is taken out of every scope with `retain` and freed with `release`.
 */

import { TidemarkError } from '../../shared/errors.ts';
import { mlx } from './binding.ts';
import type { Tensor } from './types.ts';

const native = mlx();

/** Runs `fn` and frees every tensor made in it that was not kept or retained, also when it throws. `fn` must be synchronous. */
export function scope<T>(fn: () => T): T {
  const depth = native.openScope();
  try {
    const result = fn();
    if (result instanceof Promise) throw new TidemarkError('INVALID_ARGUMENT', 'scope() takes a synchronous function: its tensors are freed when it returns.');
    return result;
  } finally {
    native.closeScope(depth);
  }
}

/** Hands a tensor to the scope around the innermost one (or out of scopes, then `release` it). Returns it. */
export function keep(t: Tensor): Tensor {
  native.keep(t);
  return t;
}

/** Takes a tensor out of every scope. Returns it. */
export function retain(t: Tensor): Tensor {
  native.retain(t);
  return t;
}

/** Below this many, a call for each costs less than handing over a list. */
const MANY = 24;

/** Frees tensors, many with one call, and empties the list: once each, whatever comes of it. */
export function releaseAll(tensors: Tensor[]): void {
  if (tensors.length < MANY) {
    for (let t = tensors.pop(); t !== undefined; t = tensors.pop()) native.release(t);
    return;
  }
  const handles = new Float64Array(tensors.length);
  for (let i = 0; i < handles.length; i++) handles[i] = tensors[i]!;
  tensors.length = 0;
  native.releaseMany(new Uint8Array(handles.buffer));
}

/** Frees a tensor now. Using or releasing it again throws TENSOR_RELEASED. */
export const { release, handleCount } = native;
