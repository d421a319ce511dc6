/**
 * Forks: clones of a sequence's live caches at the points where it is captured, each continued by the very steps that a
 * run restored at its point takes. What a restore must equal, bit for bit (design section 6). For `evaluate` alone.
 */
import type { LayerCache } from './cache/layer-cache.ts';
import { cloneCaches, releaseCaches } from './cache/registry.ts';
import type { Stream } from './mlx/types.ts';
import { nextStop, type PrefillShape } from './prefill-plan.ts';
import type { Fork } from './probe.ts';

export type Forward = (tokens: readonly number[], caches: LayerCache[], logits: 'last' | 'none') => Float32Array | null;

export class Forks {
  readonly #stream: Stream;
  #open: Fork[] = [];

  constructor(stream: Stream) {
    this.#stream = stream;
  }

  /** A point that the caches have passed is left by the clones' forgetting what came behind it, as its stored rows do. */
  take(tokenCount: number, caches: readonly LayerCache[]): void {
    if (this.#open.some((fork) => fork.tokenCount === tokenCount)) return;
    const clones = cloneCaches(caches, this.#stream);
    if (clones.every((clone) => clone.trim(clone.offset - tokenCount))) this.#open.push({ tokenCount, caches: clones });
    else releaseCaches(clones);
  }

  /** Takes each clone to the end of `tokens` and gives it back with its logits there. One that stands there already stays for later. */
  continueTo(tokens: readonly number[], shape: Omit<PrefillShape, 'total'>, forward: Forward, ended: (fork: Fork, row: Float32Array) => void): void {
    const total = tokens.length;
    const due = this.#open.filter((fork) => fork.tokenCount < total);
    this.#open = this.#open.filter((fork) => fork.tokenCount >= total);
    for (const fork of due) {
      let row: Float32Array | null = null;
      for (let at = fork.tokenCount; at < total; ) {
        const to = nextStop(at, { ...shape, total });
        row = forward(tokens.slice(at, to), fork.caches, to === total ? 'last' : 'none');
        at = to;
      }
      ended(fork, row!);
      releaseCaches(fork.caches);
    }
  }

  release(): void {
    for (const fork of this.#open.splice(0)) releaseCaches(fork.caches);
  }
}
