import { mlx } from './binding.ts';
import type { Device, Stream } from './types.ts';

const native = mlx();

/**
 * The one stream of an engine thread: made once, and set as the thread's default too, so that a call inside MLX that forgets the stream still
 * lands on it. Ops bound to any other stream are counted by `foreignStreamOps`.
 */
export function openEngineStream(device: Device): Stream {
  const stream = native.newStream(device);
  native.setDefaultStream(stream);
  native.setEngineStream(stream);
  return stream;
}

/**
 * The stream of a further model on an engine's thread. Work of the two models is apart: an op of one takes arrays of the other only when they
 * are evaluated; one that takes a lazy array across is counted by `foreignStreamOps`.
 */
export function openModelStream(device: Device): Stream {
  return native.newModelStream(device);
}

/** Waits for all work of one stream, and delivers its error. MLX's variant without an argument is almost always the wrong stream. */
export const { synchronize } = native;

export const { newStream, defaultStream, setDefaultStream, setEngineStream, liveStreams, defaultStreams, foreignStreamOps, streamIndex } = native;

/** `setDefaultDevice` is process-wide in MLX and not synchronised: before any engine works. */
export const { setDefaultDevice, gpuAvailable, deviceInfo } = native;
