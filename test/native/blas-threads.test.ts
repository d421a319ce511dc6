// The number of BLAS threads is what the engine sets, whatever the environment says.
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { runNode } from '../helpers/child.ts';

const ops = new URL('../../dist/engine-thread/mlx/ops.js', import.meta.url).href;
const script = `const mx = await import(${JSON.stringify(ops)});
  const s = mx.openEngineStream('cpu');
  const a = mx.full([300, 300], 1, 'float32', s);
  const seen = [];
  for (const n of [1, 2, 1]) { mx.setBlasThreads(n); mx.evaluate([mx.matmul(a, a, s)]); seen.push(mx.getBlasThreads()); }
  console.log(JSON.stringify({ library: mx.blasInfo().library, seen }));`;

test.each([{ OMP_NUM_THREADS: '1' }, { OPENBLAS_NUM_THREADS: '1', OMP_NUM_THREADS: '7' }, {}])('with %o', async (env) => {
  const { stdout, stderr } = await runNode(['--input-type=module', '-e', script], { env, cwd: fileURLToPath(new URL('../..', import.meta.url)) });
  expect(stderr).toBe('');
  const { library, seen } = JSON.parse(stdout) as { library: string; seen: number[] };
  expect(seen).toEqual(library === 'openblas' ? [1, 2, 1] : [1, 1, 1]);
});

test('TIDEMARK_BLAS=reference takes the wheel’s own BLAS', async () => {
  const { stdout } = await runNode(['--input-type=module', '-e', script], { env: { TIDEMARK_BLAS: 'reference' } });
  const { library, seen } = JSON.parse(stdout) as { library: string; seen: number[] };
  if (process.platform === 'linux') expect({ library, seen }).toEqual({ library: 'reference', seen: [1, 1, 1] });
});
