/**
 * Worker of `doctor`: loads MLX, computes 1 + 2 on the device an engine would use, and tells what it saw.
 */
import { parentPort } from 'node:worker_threads';
import * as mlx from '../engine-thread/mlx/ops.ts';

export interface MlxProbe {
  version: string;
  device: 'cpu' | 'gpu';
  deviceName: string;
  deviceInfo: Record<string, string | number>;
  blas: { library: string; threads: number; config?: string; core?: string };
}

function probe(): MlxProbe {
  const device = mlx.gpuAvailable() ? 'gpu' : 'cpu';
  const stream = mlx.openEngineStream(device);
  const sum = mlx.scope(() => {
    const total = mlx.add(mlx.scalar(1, 'float32'), mlx.scalar(2, 'float32'), stream);
    mlx.evaluate([total]);
    return mlx.itemNumber(total);
  });
  if (sum !== 3) throw new Error(`MLX computed 1 + 2 = ${sum} on ${device}`);
  const deviceInfo = mlx.deviceInfo(device);
  return { version: mlx.mlxVersion(), device, deviceName: String(deviceInfo.device_name ?? ''), deviceInfo, blas: mlx.blasInfo() };
}

parentPort!.postMessage(probe());
