/** Chooses the device, makes the engine's one stream on this thread, and sets it as the thread's default as well. */
import type { ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import { TidemarkError } from '../shared/errors.ts';
import { setBlasThreads } from './mlx/memory.ts';
import { gpuAvailable, openEngineStream } from './mlx/streams.ts';
import type { Stream } from './mlx/types.ts';

export function prepareDevice(options: ResolvedEngineOptions): { stream: Stream; device: 'cpu' | 'gpu' } {
  if (options.device === 'gpu' && !gpuAvailable()) {
    throw new TidemarkError(
      'MLX_UNAVAILABLE',
      "device: 'gpu' was asked for, but this MLX build has none. Use device: 'auto', or install the backend of your GPU.",
      {
        details: { device: options.device },
      },
    );
  }
  const device = options.device === 'cpu' || !gpuAvailable() ? 'cpu' : 'gpu';
  setBlasThreads(options.threads);
  return { stream: openEngineStream(device), device };
}
