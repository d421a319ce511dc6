/** The usual layer: norm, mixer, residual; norm, feed-forward, residual. Some families norm what comes out, too. */
import type { LayerCache } from '../cache/layer-cache.ts';
import * as mx from '../mlx/ops.ts';
import type { Stream, Tensor } from '../mlx/types.ts';
import type { DecoderLayer, Pass } from './decoder.ts';
import type { Deferred, Loader, Parameters } from './parameters.ts';
import type { Step } from './step.ts';

/** Mixes tokens: attention, a recurrent layer, or several side by side. x is normed, [rows, hidden]. */
export interface Mixer {
  makeCaches(): LayerCache[];
  forward(x: Tensor, caches: readonly LayerCache[], pass: Pass): Tensor;
}

/** Works token by token. */
export interface FeedForward {
  forward(x: Tensor, step: Step): Tensor;
}

export type Norm = (x: Tensor, s: Stream) => Tensor;

/** The norm weights stored at `path`. */
export function declareRmsNorm(params: Parameters, path: string, size: number, eps: number): Deferred<Norm> {
  const read = params.declareNorm(`${path}.weight`, size);
  return (loader) => {
    const weight = mx.scope(() => loader.own(read(loader)));
    return (x, s) => mx.rmsNorm(x, weight, eps, s);
  };
}

export interface BlockSpec {
  readonly mixer: Deferred<Mixer>;
  readonly feed: Deferred<FeedForward>;
  readonly inputNorm: Deferred<Norm>;
  readonly feedNorm: Deferred<Norm>;
  /** Of what the mixer and the feed-forward give. */
  readonly mixedNorm?: Deferred<Norm>;
  readonly fedNorm?: Deferred<Norm>;
}

export function declareBlock(spec: BlockSpec): Deferred<DecoderLayer> {
  return (loader: Loader) => {
    const mixer = spec.mixer(loader);
    const inputNorm = spec.inputNorm(loader);
    const feedNorm = spec.feedNorm(loader);
    const feed = spec.feed(loader);
    const mixedNorm = spec.mixedNorm?.(loader);
    const fedNorm = spec.fedNorm?.(loader);
    return {
      makeCaches: () => mixer.makeCaches(),
      mix(x, caches, pass) {
        const mixed = mixer.forward(inputNorm(x, pass.s), caches, pass);
        return mx.add(x, mixedNorm === undefined ? mixed : mixedNorm(mixed, pass.s), pass.s);
      },
      feed(x, step) {
        const fed = feed.forward(feedNorm(x, step.s), step);
        return mx.add(x, fedNorm === undefined ? fed : fedNorm(fed, step.s), step.s);
      },
    };
  };
}
