/** The verbs under `tidemark cache`. None needs MLX or an engine. */
import { cacheGc } from './cache-gc.ts';
import { cacheLs } from './cache-ls.ts';
import { cachePurge } from './cache-purge.ts';
import { cacheStat } from './cache-stat.ts';
import { cacheVerify } from './cache-verify.ts';
import type { AnyVerb } from './verb.ts';

export const CACHE_VERBS: readonly AnyVerb[] = [cacheStat, cacheLs, cacheVerify, cacheGc, cachePurge];
