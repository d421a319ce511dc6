// Every way in which a thread or a process can end while matmuls run ends cleanly, with both BLAS libraries: no crash in a library that
// unloads under running work, and no hang in one that joins its threads.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';

const rounds = process.env.TIDEMARK_LONG === '1' ? 200 : 10;
const fixture = fileURLToPath(new URL('fixtures/ends-with-work-in-flight.mjs', import.meta.url));
const hasBoth = existsSync(new URL('../../build/Release/tidemark_mlx_refblas.node', import.meta.url));

const ways = {
  'worker ends': 0,
  'worker throws': 0,
  'worker calls process.exit': 0,
  terminate: 0,
  'terminate in a native wait': 0,
  'main calls process.exit': 0,
  'main throws': 1,
  'exit with work on the main thread': 0,
};

describe.each(hasBoth ? ['openblas', 'reference'] : ['default'])('%s BLAS', (blas) => {
  test.each(Object.entries(ways))(`%s, ${rounds} times`, async (way, expected) => {
    const one = async (round: number): Promise<void> => {
      const result = await runNode([fixture, way], { env: { TIDEMARK_BLAS: blas }, timeoutMs: 20_000 });
      const what = { way, round, code: result.code, signal: result.signal, timedOut: result.timedOut };
      expect(what).toEqual({ way, round, code: expected, signal: null, timedOut: false });
      if (way !== 'main throws') expect(result.stderr).toBe('');
      else expect(result.stderr).toContain('on purpose');
    };
    for (let round = 0; round < rounds; round += 2) await Promise.all([one(round), one(round + 1)]);
  });
});
