/**
 * What every decoder-only language model has around its layers: embedding, a walk over the layers, a last norm, a head.
 * A family gives the layers.
 */
import type { Compaction } from '../boundary/compaction.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Dtype, Stream, Tensor } from '../mlx/types.ts';
import type { Embedding, Head } from './embedding.ts';
import type { CausalModel, LogitsOf, ModelInfo } from './model.ts';
import type { Loader } from './parameters.ts';
import type { Step } from './step.ts';

/** A step on its way through the layers, with what they make once and use together (masks, rotations). */
export interface Pass extends Step {
  /** What `make` gave for this key in this step. */
  shared<T>(key: unknown, make: () => T): T;
}

export interface DecoderLayer {
  /** One for most layers; a layer that keeps several kinds of state has several. */
  makeCaches(): LayerCache[];
  /** Everything that looks at other tokens; the caches are complete afterwards. x [rows, hidden], residual included. */
  mix(x: Tensor, caches: readonly LayerCache[], pass: Pass): Tensor;
  /** What follows, token by token. */
  feed(x: Tensor, step: Step): Tensor;
}

export interface DecoderParts {
  readonly embedding: Embedding;
  readonly layers: readonly DecoderLayer[];
  /** Norm before the head. */
  readonly norm: (x: Tensor, s: Stream) => Tensor;
  readonly head: Head;
  /** Applied to what the embedding gives. */
  readonly enter?: (x: Tensor, s: Stream) => Tensor;
  /** Applied to what the last layer gives, before the norm. */
  readonly leave?: (x: Tensor, step: Step) => Tensor;
  /** Applied to logits. */
  readonly cap?: (logits: Tensor, s: Stream) => Tensor;
}

export interface DecoderFacts {
  readonly modelType: string;
  readonly vocabSize: number;
  readonly maxContext: number;
  readonly hiddenSize: number;
  readonly dtype: Dtype;
  readonly warnings: readonly string[];
  readonly compaction: Compaction | undefined;
}

export class Decoder implements CausalModel {
  readonly info: ModelInfo;
  readonly warnings: readonly string[];
  readonly compaction?: Compaction;
  readonly #loader: Loader;
  readonly #parts: DecoderParts;
  readonly #cacheCounts: readonly number[];

  constructor({ warnings, compaction, ...info }: DecoderFacts, loader: Loader, parts: DecoderParts) {
    this.#loader = loader;
    this.#parts = parts;
    this.#cacheCounts = parts.layers.map((layer) => layer.makeCaches().length);
    this.warnings = warnings;
    if (compaction !== undefined) this.compaction = compaction;
    this.info = { ...info, layers: parts.layers.length, parameterBytes: loader.residentBytes };
  }

  makeCaches(): LayerCache[] {
    return this.#parts.layers.flatMap((layer) => layer.makeCaches());
  }

  forward(tokens: Tensor, caches: readonly LayerCache[], s: Stream, logits: LogitsOf): Tensor | null {
    const [batch, length] = mx.shapeOf(tokens) as [number, number];
    const step: Step = { s, device: this.#loader.options.device, batch, length, rows: batch * length };
    const { norm, head, cap } = this.#parts;
    return mx.scope(() => {
      const hidden = this.#walk(tokens, caches, step, logits);
      if (hidden === null) return null;
      const rows = logits === 'last' ? batch : step.rows;
      const out = head(norm(hidden, s), rows, s);
      return mx.keep(mx.reshape(cap === undefined ? out : cap(out, s), [batch, rows / batch, this.info.vocabSize], s));
    });
  }

  release(): void {
    this.#loader.release();
  }

  /** Hidden vectors [rows, hidden] of the tokens whose logits are wanted. */
  #walk(tokens: Tensor, caches: readonly LayerCache[], step: Step, logits: LogitsOf): Tensor | null {
    const { s, batch, length } = step;
    const { embedding, layers, enter, leave } = this.#parts;
    const pass: Pass = { ...step, shared: memo() };
    let x = embedding.lookup(mx.reshape(tokens, [step.rows], s), s);
    if (enter !== undefined) x = enter(x, s);
    let rows = step;
    let cache = 0;
    for (const [i, layer] of layers.entries()) {
      const own = this.#cacheCounts[i]!;
      x = layer.mix(x, caches.slice(cache, cache + own), pass);
      cache += own;
      if (i === layers.length - 1) {
        // The caches are complete: what follows is for the wanted tokens only.
        if (logits === 'none') return null;
        if (logits === 'last' && length > 1) {
          x = lastTokens(x, batch, length, s);
          rows = { ...step, length: 1, rows: batch };
        }
      }
      x = layer.feed(x, rows);
    }
    return leave === undefined ? x : leave(x, rows);
  }
}

function memo(): Pass['shared'] {
  const known = new Map<unknown, unknown>();
  return <T>(key: unknown, make: () => T): T => {
    if (!known.has(key)) known.set(key, make());
    return known.get(key) as T;
  };
}

/** x [rows, …] of each row's last token. */
function lastTokens(x: Tensor, batch: number, length: number, s: Stream): Tensor {
  const [, ...rest] = mx.shapeOf(x);
  const zeros = rest.map(() => 0);
  if (batch === 1) return mx.slice(x, [length - 1, ...zeros], [length, ...rest], s);
  const perRow = mx.reshape(x, [batch, length, ...rest], s);
  return mx.reshape(mx.slice(perRow, [0, length - 1, ...zeros], [batch, length, ...rest], s), [batch, ...rest], s);
}
