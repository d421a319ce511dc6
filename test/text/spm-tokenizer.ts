import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Tokenizer } from '../../src/engine-thread/text/tokenizer.ts';

/** A tokenizer in the style of SentencePiece: words joined by U+2581, unknown characters as byte tokens. */
export function spmTokenizer(): Tokenizer {
  const vocab: Record<string, number> = { '<unk>': 0, '<s>': 1, '</s>': 2 };
  for (let byte = 0; byte < 256; byte++) vocab[`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`] = 3 + byte;
  const pieces = ['\u2581', 't', 'h', 'e', 'a', 'b', '\u2581t', 'he', '\u2581the', 'th', 'ab'];
  for (const piece of pieces) vocab[piece] ??= Object.keys(vocab).length;
  const tokenizer = {
    added_tokens: [0, 1, 2].map((id) => ({
      id,
      content: ['<unk>', '<s>', '</s>'][id],
      special: true,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
    })),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '\u2581' },
        { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: { type: 'BPE', vocab, merges: ['h e', '\u2581 t', '\u2581t he', 't h', 'a b'], unk_token: '<unk>', byte_fallback: true, fuse_unk: true },
  };
  const dir = mkdtempSync(join(tmpdir(), 'tm-spm-'));
  try {
    writeFileSync(join(dir, 'tokenizer.json'), JSON.stringify(tokenizer));
    return Tokenizer.load(dir);
  } finally {
    rmSync(dir, { recursive: true });
  }
}
