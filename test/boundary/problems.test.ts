/** A fault that both loops meet is told once, and taken back when the last of them is well again. */
import { describe, expect, it } from 'vitest';
import { Problems } from '../../src/host/problems.ts';

const problem = (code: 'CACHE_FULL' | 'CACHE_IO') => ({ code, message: code, details: {} });

describe('problems of a store', () => {
  it('begins with the first reporter and ends with the last', () => {
    const problems = new Problems();
    expect(problems.first).toBeNull();
    expect(problems.begin('writer', problem('CACHE_FULL'))).toBe(true);
    expect(problems.begin('store', problem('CACHE_FULL'))).toBe(false);
    expect(problems.first).toMatchObject({ code: 'CACHE_FULL' });
    expect(problems.end('writer', 'CACHE_FULL')).toBe(false);
    expect(problems.end('writer', 'CACHE_FULL')).toBe(false);
    expect(problems.end('store', 'CACHE_FULL')).toBe(true);
    expect(problems.end('store', 'CACHE_FULL')).toBe(false);
    expect(problems.first).toBeNull();
  });

  it('a replaced reporter takes back what only it had reported', () => {
    const problems = new Problems();
    problems.begin('writer', problem('CACHE_FULL'));
    problems.begin('writer', problem('CACHE_IO'));
    problems.begin('store', problem('CACHE_FULL'));
    expect(problems.endAll('writer')).toEqual(['CACHE_IO']);
    expect(problems.first).toMatchObject({ code: 'CACHE_FULL' });
  });
});
