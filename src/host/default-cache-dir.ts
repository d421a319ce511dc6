/** Where the cache lies when nobody says otherwise. */
import { homedir } from 'node:os';
import { join } from 'node:path';

/** The platform's cache folder for tidemark. A relative `XDG_CACHE_HOME` does not count, as its specification says. */
export function defaultCacheDir(
  platform: string = process.platform,
  env: Readonly<Record<string, string | undefined>> = process.env,
  home: string = homedir(),
): string {
  if (platform === 'darwin') return join(home, 'Library', 'Caches', 'tidemark');
  const base = env.XDG_CACHE_HOME;
  return join(base?.startsWith('/') ? base : join(home, '.cache'), 'tidemark');
}
