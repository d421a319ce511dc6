// The bytes that docs/format.md promises. A change here is a new format version, not a new vector.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ChainHasher } from '../../src/shared/blocks/identity.ts';
import { buildImage } from '../../src/shared/blocks/image.ts';
import { tensorSeed } from '../../src/shared/blocks/image-sums.ts';
import { DTYPES } from '../../src/shared/layer-state.ts';
import { chainSpecs, tensor, tokensOf } from './fixtures.ts';
import { temporaryFolder } from './harness.ts';

const document = readFileSync(new URL('../../docs/format.md', import.meta.url), 'utf8');

describe('format vectors', () => {
  it('the file of docs/format.md', () => {
    const tokens = Uint32Array.of(1, 2, 3, 4);
    const blockHash = new ChainHasher({ fingerprint: 'model', extraKeys: ['b', 'a'] }).block('', tokens);
    const values = tensor(
      'F32',
      [1, 1, 4, 1],
      Uint8Array.from({ length: 16 }, (_, i) => i),
    );
    const file = buildImage({
      part: 'kv',
      blockHash,
      parentHash: '',
      start: 0,
      end: 4,
      blockSize: 256,
      tokens,
      fingerprint: 'model',
      layers: [
        { className: 'ArraysCache', stored: 'none', meta: [], elements: [] },
        { className: 'KVCache', stored: 'slice', range: [0, 4], meta: [4], elements: [values, null] },
      ],
    });
    const text = Buffer.from(file).toString('latin1');
    const facts = [
      blockHash,
      createHash('sha256').update(file).digest('hex'),
      tensorSeed(blockHash, 'kv', 'layers.1.0').toString(16),
      /"tm\.sum\.layers\.1\.0":"([0-9a-f]{16})"/.exec(text)![1]!,
      /"tm\.header":"([0-9a-f]{16})"/.exec(text)![1]!,
      `${file.length} bytes`,
    ];
    for (const fact of facts) expect(document).toContain(fact);
  });

  it('[B19] MLX’s own loader opens a file with every type and a tensor without elements', (test) => {
    const path = join(temporaryFolder(), 'all.safetensors');
    const spec = chainSpecs(tokensOf(16), 16)[0]!.kv;
    const layers = DTYPES.map((dtype, i) => ({
      className: 'X',
      stored: 'whole' as const,
      meta: [],
      elements: [tensor(dtype, [2, 3], i), tensor(dtype, [1, 0, 8], i)],
    }));
    writeFileSync(path, buildImage({ ...spec, layers }));
    const script =
      'import sys, mlx.core as mx; t, m = mx.load(sys.argv[1], return_metadata=True); mx.eval(t); print(len(t), m["tm.format"], t["layers.10.0"].dtype, t["layers.10.1"].shape)';
    const result = spawnSync('python3', ['-c', script, path], { encoding: 'utf8', timeout: 60_000 });
    if (/No module named|ENOENT/.test(`${result.stderr}${result.error}`)) return test.skip('no Python package of MLX here');
    expect(result.stderr).toBe('');
    expect(result.stdout.trim()).toBe('28 1 mlx.core.bfloat16 (1, 0, 8)');
  });
});
