// Token ids are part of a block's identity: an id that differs from the reference tokenizer makes every cache entry useless.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { Tokenizer } from '../../src/engine-thread/text/tokenizer.ts';

const TIDE = join(import.meta.dirname, '../../models/tide-5m');
const TINY = join(import.meta.dirname, '../fixtures/models/tiny-qwen3_5');
const GOLDEN = join(import.meta.dirname, '../fixtures/models/tiny-tokenizer-golden.json');

const json = (path: string) => JSON.parse(readFileSync(path, 'utf8'));

describe('encode', () => {
  const tide = Tokenizer.load(TIDE);
  test.each(json(join(TIDE, 'reference.json')) as { prompt: string; ids: number[] }[])('tide-5m: $prompt', ({ prompt, ids }) => {
    expect(tide.encode(prompt)).toEqual(ids);
    expect(tide.decode(ids)).toBe(prompt);
  });

  const tiny = Tokenizer.load(TINY);
  test.each(json(GOLDEN) as { text: string; ids: number[] }[])('tiny: $text', ({ text, ids }) => {
    expect(tiny.encode(text)).toEqual(ids);
    expect(tiny.decode(ids, { skipSpecialTokens: false })).toBe(text);
  });
});

describe('ids', () => {
  const tide = Tokenizer.load(TIDE);

  test('end-of-answer ids come from generation_config, then config, then the eos token', () => {
    expect(tide.eosTokenIds({})).toEqual([0, 2]);
    const dir = mkdtempSync(join(tmpdir(), 'tm-tok-'));
    try {
      writeFileSync(join(dir, 'tokenizer.json'), readFileSync(join(TIDE, 'tokenizer.json')));
      writeFileSync(join(dir, 'tokenizer_config.json'), '{"eos_token": {"content": "<|im_end|>"}}');
      const bare = Tokenizer.load(dir);
      expect(bare.eosTokenIds({})).toEqual([2]);
      expect(bare.eosTokenIds({ text_config: { eos_token_id: 7 } })).toEqual([7]);
      expect(bare.eosTokenIds({ eos_token_id: [5, 6], text_config: { eos_token_id: 7 } })).toEqual([5, 6]);
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test('special ids are left out of text unless asked for', () => {
    const ids = [...tide.encode('a'), 2];
    expect(tide.decode(ids)).toBe('a');
    expect(tide.decode(ids, { skipSpecialTokens: false })).toBe('a<|im_end|>');
    expect([...tide.specialIds].sort()).toEqual([0, 1, 2]);
  });

  test('ids without a token, and no ids at all, are no text', () => {
    expect(tide.decode([4_000_000])).toBe('');
    expect(tide.decode([])).toBe('');
    expect(tide.encode('')).toEqual([]);
  });
});

describe('a folder without a usable tokenizer', () => {
  test.each([
    ['no file', {}, /does not exist/],
    ['only a SentencePiece file', { 'tokenizer.model': 'x' }, /tokenizer\.model/],
    ['half a file', { 'tokenizer.json': '{"model": {' }, /not valid JSON/],
    ['a list', { 'tokenizer.json': '[]' }, /expected a JSON object/],
    ['no model section', { 'tokenizer.json': '{"model": null}' }, /not a tokenizer/],
    ['a Git LFS pointer', { 'tokenizer.json': 'version https://git-lfs.github.com/spec/v1' }, /git lfs pull/],
  ])('%s is TOKENIZER_INVALID', (_, files, message) => {
    const dir = mkdtempSync(join(tmpdir(), 'tm-tok-'));
    try {
      for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
      expect(() => Tokenizer.load(dir)).toThrow(expect.objectContaining({ code: 'TOKENIZER_INVALID', message: expect.stringMatching(message) }));
    } finally {
      rmSync(dir, { recursive: true });
    }
  });
});
