import { expect, test } from 'vitest';

test('one', () => expect(1).toBe(1));
test('two', () => expect(process.env.TIDEMARK_SEED).toBe('77'));
test.skip('three', () => expect(1).toBe(2));
