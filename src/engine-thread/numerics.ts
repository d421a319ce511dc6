/** The numerics class of an engine: what changes the bits of a forward pass. Blocks are shared within one class only. */
import { cpus } from 'node:os';
import type { ResolvedEngineOptions } from '../shared/engine-protocol.ts';
import type { EngineModel } from './engine-model.ts';
import { blasInfo, mlxVersion } from './mlx/memory.ts';

export function numericsKeys(model: EngineModel, options: ResolvedEngineOptions): string[] {
  const keys = [`device:${model.device}`, `mlx:${mlxVersion()}`, `compute:${model.compute}`];
  if (!options.deterministic) return keys;
  // Where equal bits are promised, so is everything that only rounds differently.
  const { library, core = '', threads } = blasInfo();
  return [...keys, `grid:${options.prefillChunk}/${options.blockSize}`, `blas:${library} ${core}`, `cpu:${cpus()[0]?.model ?? ''}`, `threads:${threads}`];
}
