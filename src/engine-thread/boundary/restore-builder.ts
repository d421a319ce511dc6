/**
 * Collects the parts of a restore and makes live caches of them, all or nothing.
 *
 * Engine thread. Each part is copied out of the restore region when it comes, so that the region is free for the next one
 * however long the prefix is; the caches are built and evaluated in `finish`, on the engine's stream. State that was stored
 * at reduced precision is float32 again from here on; rows that the blocks of a chain share out are put together.
 */
import { TidemarkError } from '../../shared/errors.ts';
import { isTensorBytes, type LayerState, type StateElement } from '../../shared/layer-state.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import { releaseCaches, requireOffsets } from '../cache/registry.ts';
import { restoreCaches } from '../cache/restore.ts';
import { joinStates } from './join-states.ts';
import type { RestoreEvent } from './restore.ts';
import { decodeTensor, isEncodedTensor } from './state-codec/decode.ts';

type Part = Extract<RestoreEvent, { type: 'part' }>;

export class RestoreBuilder {
  readonly #model: { makeCaches(): LayerCache[] };
  readonly #kv: { start: number; end: number; layers: LayerState[] }[] = [];
  readonly #states = new Map<number, { start: number; layers: LayerState[] }>();

  constructor(model: { makeCaches(): LayerCache[] }) {
    this.#model = model;
  }

  /** Copies the part; the caller releases it afterwards. Returns its size in bytes. Throws when an encoding can't be believed. */
  add(part: Part): number {
    const layers = part.layers.map(ownCopy);
    if (part.part === 'kv') this.#kv.push({ start: part.start, end: part.end, layers });
    else this.#states.set(part.end, { start: part.start, layers });
    return part.bytes;
  }

  /** The caches at exactly `tokenCount` tokens. Throws when a layer refuses its state; nothing is kept then. */
  finish(tokenCount: number): LayerCache[] {
    try {
      const caches = restoreCaches(this.#model, { kv: this.#chain(tokenCount), state: this.#state(tokenCount) });
      // What the bytes say of themselves is not enough: each layer must stand at the very point that was asked for.
      try {
        requireOffsets(caches, tokenCount);
      } catch (error) {
        releaseCaches(caches);
        throw error;
      }
      return caches;
    } finally {
      this.release();
    }
  }

  release(): void {
    this.#kv.length = 0;
    this.#states.clear();
  }

  /** The state at `tokenCount`, its rows completed from the states of the blocks before, as far as they came. */
  #state(tokenCount: number): LayerState[] | null {
    const chain: LayerState[][] = [];
    for (let at = tokenCount; at > 0; ) {
      const state = this.#states.get(at);
      if (state === undefined) break;
      chain.unshift(state.layers);
      at = state.start;
    }
    if (chain.length === 0) return null;
    const joined = joinStates(chain, tokenCount);
    if (joined.ok) return joined.layers;
    throw new TidemarkError('FORMAT_INVALID', `The stored states do not make one: ${joined.detail}.`, { details: { missReason: joined.reason } });
  }

  /** Parts that the chain up to `tokenCount` is made of. A tail that turned out unusable may have been replaced by a shorter one. */
  #chain(tokenCount: number): LayerState[][] {
    const chain: LayerState[][] = [];
    let at = tokenCount;
    for (const part of this.#kv.toReversed()) {
      if (part.end !== at) continue;
      chain.unshift(part.layers);
      at = part.start;
    }
    return chain;
  }
}

function ownCopy(layer: LayerState): LayerState {
  return { ...layer, elements: layer.elements.map(ownElement) };
}

function ownElement(element: StateElement): StateElement {
  if (element === null || typeof element === 'number') return element;
  if (!isTensorBytes(element)) return element.map(ownElement);
  if (isEncodedTensor(element)) return decodeTensor(element);
  const bytes = new Uint8Array(element.byteLength);
  element.copyTo(bytes, 0);
  return { ...element, copyTo: (target, from) => target.set(bytes.subarray(from, from + target.length)) };
}
