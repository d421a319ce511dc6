/** The package's own version, from the package.json two folders above the compiled file. */
import { readFileSync } from 'node:fs';

export function version(): string {
  const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string };
  return manifest.version;
}
