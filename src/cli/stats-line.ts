/**
 * The line that --stats shows after an answer.
 */
import type { FinishReason, Usage } from '../host/api.ts';
import type { MissReason } from '../shared/errors.ts';
import { formatCount, formatMs } from './units.ts';

export interface AnswerFacts {
  usage: Usage;
  finishReason: FinishReason;
  missReason: MissReason | null;
}

export function statsLine({ usage, finishReason, missReason }: AnswerFacts, firstMs: number, totalMs: number): string {
  const cached = `${usage.cachedTokens.toLocaleString('en-US')} from the cache${missReason === null ? '' : `; miss: ${missReason}`}`;
  const decodeMs = totalMs - firstMs;
  const rate = usage.completionTokens > 1 && decodeMs > 0 ? `, then ${(((usage.completionTokens - 1) * 1000) / decodeMs).toFixed(1)} tokens/s` : '';
  const first = Number.isNaN(firstMs) ? '' : `, first token after ${formatMs(firstMs)}${rate}`;
  return `[prompt ${formatCount(usage.promptTokens, 'token')} (${cached}), answer ${formatCount(usage.completionTokens, 'token')}${first}, ended by ${finishReason}]`;
}
