import type { ConfigReader } from '../config-reader.ts';

/** `time_step_limit`: the range time steps are cut to. JSON cannot say Infinity; Python writes it all the same, or as a string. */
export function readTimeLimits(text: ConfigReader): readonly [number, number] {
  const given = text.raw('time_step_limit') ?? [0, 'Infinity'];
  const limits = Array.isArray(given) ? given.map((limit) => (limit === 'Infinity' || limit === 'inf' ? Infinity : limit)) : [];
  const [low, high] = limits;
  if (limits.length === 2 && typeof low === 'number' && typeof high === 'number' && low >= 0 && low < high) return [low, high];
  throw text.error('time_step_limit', 'two numbers, the first smaller', given);
}
