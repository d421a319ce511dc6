/**
 * What `tidemark eval` and the exactness tests look at: the logits row at the end of the prompt, a digest of the
 * caches there, and the greedy tokens that follow. Rows are float32 copies on the host.
 */
import { createHash } from 'node:crypto';
import type { Probe, ProbeOptions } from '../shared/engine-protocol.ts';
import type { MissReason } from '../shared/errors.ts';
import { isTensorBytes, type StateElement } from '../shared/layer-state.ts';
import type { LayerCache } from './cache/layer-cache.ts';
import { evaluate } from './mlx/ops.ts';
import type { Stream } from './mlx/types.ts';

export interface Fork {
  tokenCount: number;
  caches: LayerCache[];
}

export class LogitsProbe {
  readonly #options: ProbeOptions;
  readonly #stream: Stream;
  readonly #greedy: number[] = [];
  readonly #gaps: number[] = [];
  readonly #forks: NonNullable<Probe['forks']> = [];
  #row: Float32Array | null = null;
  #digest: string | null = null;

  constructor(options: ProbeOptions, stream: Stream) {
    this.#options = options;
    this.#stream = stream;
  }

  prompt(row: Float32Array, caches: readonly LayerCache[]): void {
    this.#row = row.slice();
    if (this.#options.full) this.#digest = digestCaches(caches, this.#stream);
  }

  step(row: Float32Array): void {
    if (this.#greedy.length >= this.#options.greedy) return;
    const { first, gap } = bestTwo(row);
    this.#greedy.push(first);
    this.#gaps.push(gap);
  }

  fork(fork: Fork, row: Float32Array): void {
    this.#forks.push({ tokenCount: fork.tokenCount, logits: row.slice(), stateDigest: digestCaches(fork.caches, this.#stream) });
  }

  result(cachedTokens: number, missReason: MissReason | null): Probe | undefined {
    const row = this.#row;
    if (row === null) return undefined;
    const probe: Probe = {
      argmax: bestTwo(row).first,
      logsumexp: logSumExp(row),
      logitsHead: Array.from(row.subarray(0, 16)),
      greedy: this.#greedy,
      gaps: this.#gaps,
      cachedTokens,
      missReason,
    };
    if (this.#options.full) {
      probe.logits = row;
      probe.stateDigest = this.#digest!;
    }
    if (this.#options.forks) probe.forks = this.#forks;
    return probe;
  }
}

function bestTwo(row: Float32Array): { first: number; gap: number } {
  let first = 0;
  let second = Number.NEGATIVE_INFINITY;
  for (let i = 1; i < row.length; i++) {
    if (row[i]! > row[first]!) {
      second = row[first]!;
      first = i;
    } else if (row[i]! > second) second = row[i]!;
  }
  return { first, gap: row[first]! - second };
}

function logSumExp(row: Float32Array): number {
  const top = row[bestTwo(row).first]!;
  let sum = 0;
  for (const value of row) sum += Math.exp(value - top);
  return top + Math.log(sum);
}

/** SHA-256 over class, layout and every valid byte of each layer's state, in layer order. */
function digestCaches(caches: readonly LayerCache[], stream: Stream): string {
  const hash = createHash('sha256');
  for (const cache of caches) {
    const capture = cache.capture(0, cache.offset, stream);
    evaluate(capture.tensors());
    const state = capture.toLayerState();
    hash.update(JSON.stringify([state.className, state.meta]));
    for (const element of state.elements) digestElement(hash, element);
    capture.release();
  }
  return hash.digest('hex');
}

function digestElement(hash: ReturnType<typeof createHash>, element: StateElement): void {
  if (element === null || typeof element === 'number') {
    hash.update(JSON.stringify(element));
  } else if (isTensorBytes(element)) {
    hash.update(JSON.stringify([element.dtype, element.shape]));
    const bytes = new Uint8Array(element.byteLength);
    element.copyTo(bytes, 0);
    hash.update(bytes);
  } else {
    for (const inner of element) digestElement(hash, inner);
  }
}
