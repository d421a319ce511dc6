/**
 * Where things lie in the repository, for tests.
 */
import { fileURLToPath } from 'node:url';

/** Root of the repository. */
export const ROOT: string = fileURLToPath(new URL('../../', import.meta.url));
/** The demo model. */
export const TIDE_5M: string = `${ROOT}models/tide-5m`;
/** A compiled file, by its path under `src` without the ending: `dist('cli/main')`. Tests that start threads use these. */
export function dist(name: string): string {
  return `${ROOT}dist/${name}.js`;
}
/** The command line's entry. */
export const CLI: string = dist('cli/main');
