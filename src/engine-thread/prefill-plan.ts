/**
 * Where a prefill stops on its way to the end of a prompt. Pure arithmetic, so that a restored run and the run that
 * wrote the snapshot provably take the same steps from the same point.
 */

export interface PrefillShape {
  /** Tokens of the whole prompt. */
  total: number;
  /** Largest number of tokens per forward pass. */
  chunk: number;
  /** Passes end at multiples of `chunk` from the first token on, wherever they begin: what was restored changes no later step. */
  onGrid: boolean;
  /** Tokens per block. */
  blockSize: number;
  /**
   * True when some layer's state can't be cut by token (recurrent state): the pass must end exactly at each boundary
   * that is captured. Sliceable caches are cut afterwards, so their chunks are not shortened.
   */
  stopAtBoundaries: boolean;
  /** True when the point one token before the end is captured: an exact repeat of the prompt then costs one token. */
  stopBeforeLast: boolean;
}

/** The end (exclusive) of the pass that starts at `from`. */
export function nextStop(from: number, shape: PrefillShape): number {
  let end = Math.min(from - (shape.onGrid ? from % shape.chunk : 0) + shape.chunk, shape.total);
  if (shape.stopAtBoundaries) end = Math.min(end, from - (from % shape.blockSize) + shape.blockSize);
  if (shape.stopBeforeLast && from < shape.total - 1) end = Math.min(end, shape.total - 1);
  return end;
}

/** Full-block boundaries in (from, to]. */
export function blockBoundariesIn(from: number, to: number, blockSize: number): number[] {
  const found: number[] = [];
  for (let at = from - (from % blockSize) + blockSize; at <= to; at += blockSize) found.push(at);
  return found;
}
