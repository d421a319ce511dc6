/** What the engine sees of a model, whatever its family. */
import type { Compaction } from '../boundary/compaction.ts';
import type { LayerCache } from '../cache/layer-cache.ts';
import type { Device, Dtype, Stream, Tensor } from '../mlx/types.ts';

/** 'float32' casts every floating parameter when loading; 'model' keeps the stored types. Quantized weights stay packed in both. */
export type Compute = 'float32' | 'model';

export interface ModelInfo {
  /** As in config.json. */
  readonly modelType: string;
  readonly vocabSize: number;
  /** Longest sequence in tokens. */
  readonly maxContext: number;
  readonly layers: number;
  readonly hiddenSize: number;
  /** Of the activations. */
  readonly dtype: Dtype;
  /** Bytes of all parameters in memory. */
  readonly parameterBytes: number;
}

/** Which logits a step gives: of the last token of each row, of all tokens, or none (the step only fills the caches). */
export type LogitsOf = 'last' | 'all' | 'none';

export interface CausalModel {
  readonly info: ModelInfo;
  /** What was odd about the folder and did not keep the model from loading, for people. */
  readonly warnings: readonly string[];
  /** Of families whose state has append-only elements besides pools: cuts them down to a block's rows when they are stored. */
  readonly compaction?: Compaction;
  /** Fresh caches for one sequence, one per layer. */
  makeCaches(): LayerCache[];
  /**
   * Describes one step. Nothing is computed yet: evaluate the result together with `cacheTensors(caches)`.
   *
   * The caches are updated at once; when building or evaluating the step fails they are of no use any more and must be
   * released. A step of several tokens takes one row; a batch decodes one token per row.
   *
   * @param tokens [rows, T] int32
   * @param caches as made by `makeCaches`, restored or merged; one object per layer
   * @returns logits [rows, 1, V] for 'last', [rows, T, V] for 'all', owned by the caller's scope; null for 'none'
   */
  forward(tokens: Tensor, caches: readonly LayerCache[], s: Stream, logits: LogitsOf): Tensor | null;
  /** Frees the parameters. Caches are released by who owns them. */
  release(): void;
}

export interface LoadOptions {
  /** The engine's stream; weights are prepared on it. */
  readonly stream: Stream;
  readonly device: Device;
  readonly compute: Compute;
  /** Called after each tensor; bytes of weight files. */
  readonly onProgress?: (bytes: number, totalBytes: number) => void;
}
