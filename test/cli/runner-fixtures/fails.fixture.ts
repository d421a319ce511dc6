import { expect, test } from 'vitest';

test('good', () => expect(1).toBe(1));
test('bad', () => expect(1).toBe(2));
