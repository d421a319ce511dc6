// The allocator cache and a thread's streams are cleared in one file only, which drains and locks first.
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../helpers/paths.ts';

function callers(pattern: RegExp, folder: string, ending: RegExp): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => ending.test(name))
    .map((name) => join(ROOT, folder, name))
    .filter((file) =>
      readFileSync(file, 'utf8')
        .split('\n')
        .some((line) => pattern.test(line) && !/^\s*(\*|\/\/)/.test(line)),
    )
    .map((file) => relative(ROOT, file));
}

test('[J109] TypeScript', () => {
  expect(callers(/\b(clearCache|clearStreams)\b/, 'src', /\.ts$/).sort()).toEqual([
    'src/engine-thread/mlx/metal-sync.ts',
    'src/engine-thread/mlx/native-mlx.ts',
  ]);
});

test('[J109] native code', () => {
  expect(callers(/clear_cache\(/, 'native', /\.(cc|h)$/)).toEqual(['native/mlx/memory.cc']);
  // The end of a thread clears its streams too.
  expect(callers(/clear_streams\(/, 'native', /\.(cc|h)$/).sort()).toEqual(['native/mlx/env.cc', 'native/mlx/streams.cc']);
});

test('[J109] scripts and benchmarks, but for the wrong order that the benchmark of clears shows', () => {
  const found = ['bench', 'scripts'].flatMap((folder) => callers(/\b(clearCache|clearStreams|clear_cache|clear_streams)\b/, folder, /\.(mjs|py)$/));
  expect(found).toEqual(['bench/lib/streams-worker.mjs']);
});

test('[J109] one call each in its file, and the engine clears through it alone', () => {
  const source = readFileSync(join(ROOT, 'src/engine-thread/mlx/metal-sync.ts'), 'utf8');
  expect(source.match(/\bnative\.clearCache\(/g)).toHaveLength(1);
  expect(source.match(/\bnative\.clearStreams\(/g)).toHaveLength(1);
  expect(callers(/\bsyncAndClearCache\(/, 'src', /\.ts$/).sort()).toEqual(['src/engine-thread/engine-core.ts', 'src/engine-thread/mlx/metal-sync.ts']);
});

test('no wait without a stream', () => {
  expect(callers(/synchronize\(\)/, 'src', /\.ts$/)).toEqual([]);
  expect(callers(/synchronize\(\)/, 'native', /\.(cc|h)$/)).toEqual([]);
});

test('no read that moves device memory', () => {
  expect(callers(/\bdata<|\.item</, 'native', /\.(cc|h)$/).sort()).toEqual(['native/mlx/bytes.cc', 'native/mlx/device_copy.cc']);
});
