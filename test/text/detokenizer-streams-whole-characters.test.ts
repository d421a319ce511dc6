// No piece may hold half a character, and the pieces joined must be the text, wherever the token borders fall.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { StreamingDetokenizer } from '../../src/engine-thread/text/detokenizer.ts';
import { Tokenizer } from '../../src/engine-thread/text/tokenizer.ts';
import { spmTokenizer } from './spm-tokenizer.ts';

const tide = Tokenizer.load(join(import.meta.dirname, '../../models/tide-5m'));
const tiny = Tokenizer.load(join(import.meta.dirname, '../fixtures/models/tiny-qwen3_5'));
const spm = spmTokenizer();

const text = fc
  .array(fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom('日本語', '🙂', '👩‍👩‍👧', 'é', 'e\u0301', ' ', '\n\n', 'the', 'Ω≈ç', '\ufeff', 'ab')), {
    maxLength: 12,
  })
  .map((parts) => parts.join(''));

function stream(tokenizer: Tokenizer, ids: readonly number[], options = {}): string[] {
  const out = new StreamingDetokenizer(tokenizer, { skipSpecialTokens: false, ...options });
  return [...ids.map((id) => out.push(id)), out.finish()];
}

const hasHalf = (piece: string) => /\p{Surrogate}/u.test(piece);

describe.each([
  ['byte-level, 4,096 ids', tide],
  ['byte-level, every byte an id', tiny],
  ['metaspace with byte fallback', spm],
])('%s', (_, tokenizer) => {
  test('pieces are whole characters and join to the text', () => {
    fc.assert(
      fc.property(text, (source) => {
        const ids = tokenizer.encode(source, { addSpecialTokens: false });
        const pieces = stream(tokenizer, ids);
        expect(pieces.join('')).toBe(tokenizer.decode(ids, { skipSpecialTokens: false }));
        for (const piece of pieces) expect(hasHalf(piece)).toBe(false);
        if (!source.includes('\ufffd')) expect(pieces.join('')).not.toContain('\ufffd');
      }),
      { numRuns: 300, seed: 20261129 },
    );
  });
});

test('random ids, valid text or not, join to what decode gives', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 330 }), { maxLength: 40 }), (ids) => {
      expect(stream(tiny, ids).join('')).toBe(tiny.decode(ids, { skipSpecialTokens: false }));
    }),
    { numRuns: 300, seed: 20261129 },
  );
});

test('bytes that never become a character show as U+FFFD at the end', () => {
  const ids = tiny.encode('日').slice(0, 2);
  expect(stream(tiny, ids)).toEqual(['', '', '\ufffd']);
});

test('a special token ends a character that was not complete', () => {
  const [first] = tiny.encode('日');
  expect(stream(tiny, [first!, 2]).join('')).toBe('\ufffd<|im_end|>');
});

describe('stop strings', () => {
  test('the text ends before the first stop string, however the tokens cut it', () => {
    fc.assert(
      fc.property(text, fc.array(fc.string({ minLength: 1, maxLength: 4, unit: 'grapheme' }), { minLength: 1, maxLength: 3 }), (source, stop) => {
        const ids = tiny.encode(source, { addSpecialTokens: false });
        const whole = tiny.decode(ids, { skipSpecialTokens: false });
        const joined = stream(tiny, ids, { stop }).join('');
        const ends = stop.map((s) => ({ at: whole.indexOf(s), s })).filter(({ at }) => at >= 0);
        const first = ends.sort((a, b) => a.at + a.s.length - (b.at + b.s.length) || a.at - b.at)[0];
        expect(joined).toBe(first === undefined ? whole : whole.slice(0, first.at));
      }),
      { numRuns: 300, seed: 20261129 },
    );
  });

  test('what may become a stop string is held back and given out when it does not', () => {
    const out = new StreamingDetokenizer(tiny, { stop: ['END'] });
    const pieces = [...'xENERGY'].map((c) => out.push(tiny.encode(c)[0]!));
    expect(pieces).toEqual(['x', '', '', 'EN', 'ER', 'G', 'Y']);
    expect(out.stopped).toBeNull();
    expect(out.finish()).toBe('');
  });

  test('after a match nothing more comes', () => {
    const out = new StreamingDetokenizer(tiny, { stop: ['ND'] });
    expect([...'xENDy'].map((c) => out.push(tiny.encode(c)[0]!)).join('')).toBe('xE');
    expect(out.stopped).toBe('ND');
    expect(out.finish()).toBe('');
  });

  test('an unfinished beginning is given out at the end', () => {
    const out = new StreamingDetokenizer(tiny, { stop: ['END'] });
    expect([...'aEN'].map((c) => out.push(tiny.encode(c)[0]!)).join('')).toBe('a');
    expect(out.finish()).toBe('EN');
  });
});

test('the reference answers stream to their decoded text', () => {
  const reference = JSON.parse(readFileSync(join(import.meta.dirname, '../../models/tide-5m/reference.json'), 'utf8'));
  for (const { greedy } of reference) expect(stream(tide, greedy).join('')).toBe(tide.decode(greedy, { skipSpecialTokens: false }));
});
