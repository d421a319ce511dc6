/**
 * The public types, by the compiler. What must not happen: a name of the public surface that changes or vanishes, a call
 * of the native layer without a stream that compiles.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';

const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin/tsc');

test('[I94] what apps write compiles, and what must not compile does not: a call without a stream, an array handed over as state', async () => {
  const { code, stdout } = await runNode([tsc, '-p', join(ROOT, 'test/types')], { cwd: ROOT });
  expect({ code, stdout }).toEqual({ code: 0, stdout: '' });
});
