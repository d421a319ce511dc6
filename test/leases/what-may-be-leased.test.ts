// Only what nobody writes to in place. What must not happen: the next token copies a whole ring, pool or row buffer because a lease holds it.
import { expect, test } from 'vitest';
import { mayLease, tensorBytesOf } from '../../src/engine-thread/boundary/lease-book.ts';
import type { LayerState } from '../../src/shared/layer-state.ts';

const tensor = (byteLength: number) => ({ dtype: 'U8' as const, shape: [byteLength], byteLength, copyTo: () => undefined });
const layer = (className: string, stored: LayerState['stored'], ...elements: LayerState['elements']): LayerState => ({ className, stored, meta: [], elements });

test('[I101] of a living sequence: state that every token replaces, and no layer beside it that is written in place', () => {
  const arrays = layer('ArraysCache', 'whole', tensor(8), null);
  expect(mayLease([arrays, layer('KVCache', 'none')], false)).toBe(true);
  expect(mayLease([layer('KVCache', 'none'), layer('RotatingKVCache', 'none')], false)).toBe(true);
  for (const other of [layer('RotatingKVCache', 'whole', tensor(8)), layer('CacheList', 'whole', [tensor(8)]), layer('KVCache', 'slice', tensor(8))]) {
    expect(mayLease([arrays, other], false), other.className).toBe(false);
    expect(mayLease([arrays, other], true), other.className).toBe(true);
  }
});

test('what counts is the bytes of the tensors that lie side by side', () => {
  expect(tensorBytesOf([layer('ArraysCache', 'whole', tensor(8), null, tensor(4)), layer('KVCache', 'none')])).toBe(12);
});
