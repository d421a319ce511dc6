/** What staging must look like when all is quiet. */
import { expect } from 'vitest';
import { keyToHex } from '../../dist/shared/session/request-key.js';
import type { StoreFixture } from './fixture.ts';

/** Every folder in staging belongs to a request with a record, and every record has its file. */
export function folderEqualsRegistry(f: StoreFixture): void {
  const expected: string[] = [];
  for (const index of f.session.registry.recordsOf(null)) {
    const { key, tokenCount } = f.session.registry.read(index);
    expected.push(`${keyToHex(key)}/`, `${keyToHex(key)}/${tokenCount}.safetensors`);
  }
  expect(f.files()).toEqual([...new Set(expected)].sort());
}
