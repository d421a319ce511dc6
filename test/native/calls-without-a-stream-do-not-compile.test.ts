import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';

test('[J105] the compiler accepts fixtures/types with its @ts-expect-error lines', async () => {
  const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin/tsc');
  const result = await runNode([tsc, '-p', fileURLToPath(new URL('fixtures/types', import.meta.url))]);
  expect(result.stdout + result.stderr).toBe('');
  expect(result.code).toBe(0);
});
