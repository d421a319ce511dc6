/**
 * The inverse of compaction: the states of a chain of blocks become the state at the end of the last one.
 *
 * Only elements with a recorded range need the blocks before. Their rows must follow each other without a hole from row 0
 * to the number that the token count asks for: anything else is a miss, never a shorter pool.
 */
import type { MissReason } from '../../shared/errors.ts';
import { type HeldRows, isTensorBytes, type LayerState, type TensorBytes } from '../../shared/layer-state.ts';
import { elementAt, replaceAt } from './compaction.ts';

export type JoinedStates = { readonly ok: true; readonly layers: LayerState[] } | { readonly ok: false; readonly reason: MissReason; readonly detail: string };

/**
 * @param states of consecutive blocks, the last one at `tokenCount`; blocks before the first row that is needed may be absent
 */
export function joinStates(states: readonly (readonly LayerState[])[], tokenCount: number): JoinedStates {
  const tip = states.at(-1);
  if (tip === undefined) return miss('gap', 'there is no state');
  const layers: LayerState[] = [];
  for (const [index, layer] of tip.entries()) {
    const { rows = [], ...whole } = layer;
    let elements = layer.elements;
    for (const held of rows) {
      const where = `layer ${index}, element ${held.at.join('.')}`;
      if (held.end !== Math.floor(tokenCount / held.ratio)) return miss('format', `${where} ends at row ${held.end}, token ${tokenCount} asks for another`);
      const pieces = collect(states, index, held);
      if (typeof pieces === 'string') return miss('gap', `${where}: ${pieces}`);
      elements = replaceAt(elements, held.at, concatenateRows(pieces));
    }
    layers.push({ ...whole, elements });
  }
  return { ok: true, layers };
}

/** The pieces that end with the tip's, first rows first; or what is wrong with the chain. */
function collect(states: readonly (readonly LayerState[])[], index: number, tip: HeldRows): TensorBytes[] | string {
  const pieces: TensorBytes[] = [];
  let wanted = tip.end;
  for (const state of states.toReversed()) {
    const layer = state[index];
    const element = layer === undefined ? undefined : elementAt(layer.elements, tip.at);
    if (layer === undefined || element === undefined || element === null || !isTensorBytes(element)) return `rows before ${wanted} are missing`;
    const held = layer.rows?.find(({ at }) => at.join() === tip.at.join());
    // A block that was stored whole holds everything up to its end.
    const { start, end, ratio } = held ?? { start: 0, end: element.shape[1] ?? 0, ratio: tip.ratio };
    if (end !== wanted || ratio !== tip.ratio) return `rows [${start}, ${end}) come before row ${wanted}`;
    if (element.shape[1] !== end - start || !alike(element, pieces[0])) return `rows [${start}, ${end}) are a ${element.dtype} [${element.shape}]`;
    pieces.unshift(element);
    wanted = start;
    if (start === 0) return pieces;
  }
  return `rows before ${wanted} are missing`;
}

/** Everything but the number of rows must be the same. */
function alike(a: TensorBytes, b: TensorBytes | undefined): boolean {
  return (
    a.shape[0] === 1 &&
    (b === undefined || (a.dtype === b.dtype && a.shape.length === b.shape.length && a.shape.every((extent, i) => i === 1 || extent === b.shape[i])))
  );
}

/** Tensors [1, rows, …] one behind the other, read from where each lies. */
function concatenateRows(pieces: readonly TensorBytes[]): TensorBytes {
  const [first] = pieces as readonly [TensorBytes];
  if (pieces.length === 1) return first;
  const [batch = 1, , ...rest] = first.shape;
  return {
    dtype: first.dtype,
    shape: [batch, pieces.reduce((sum, piece) => sum + piece.shape[1]!, 0), ...rest],
    byteLength: pieces.reduce((sum, piece) => sum + piece.byteLength, 0),
    copyTo(target, from) {
      let pieceStart = 0;
      for (const piece of pieces) {
        const begin = Math.max(from, pieceStart);
        const end = Math.min(from + target.length, pieceStart + piece.byteLength);
        if (begin < end) piece.copyTo(target.subarray(begin - from, end - from), begin - pieceStart);
        pieceStart += piece.byteLength;
      }
    },
  };
}

function miss(reason: MissReason, detail: string): JoinedStates {
  return { ok: false, reason, detail };
}
