import { mlx } from './binding.ts';

const native = mlx();

/** Process-wide figures and limits of MLX's allocator. Setters return the former value. */
export const { activeBytes, peakBytes, resetPeakBytes, cacheBytes, memoryLimit, setMemoryLimit, setCacheLimit, setWiredLimit } = native;

export const { mlxVersion, blasInfo, setBlasThreads, getBlasThreads } = native;
