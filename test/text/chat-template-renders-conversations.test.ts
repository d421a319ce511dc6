// The prompt's text decides which blocks are found: the template must render as the reference does, or fail with a code.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { ChatTemplate, type TemplateMessage } from '../../src/engine-thread/text/chat-template.ts';
import { validateStopStrings } from '../../src/engine-thread/text/stop-strings.ts';
import { Tokenizer } from '../../src/engine-thread/text/tokenizer.ts';

const TIDE = join(import.meta.dirname, '../../models/tide-5m');
const folders: string[] = [];
afterAll(() => {
  for (const dir of folders) rmSync(dir, { recursive: true });
});

function folder(config: object, files: Record<string, string> = {}): ChatTemplate {
  const dir = mkdtempSync(join(tmpdir(), 'tm-chat-'));
  folders.push(dir);
  writeFileSync(join(dir, 'tokenizer.json'), readFileSync(join(TIDE, 'tokenizer.json')));
  writeFileSync(join(dir, 'tokenizer_config.json'), JSON.stringify(config));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  return ChatTemplate.load(dir, Tokenizer.load(dir));
}

const hi = [{ role: 'user', content: 'hi' }];

test('the demo model lays out a conversation and asks for an answer', () => {
  const tokenizer = Tokenizer.load(TIDE);
  const text = ChatTemplate.load(TIDE, tokenizer).render([{ role: 'system', content: 'Be short.' }, ...hi]);
  expect(text).toBe('<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n');
  expect(tokenizer.encode(text, { addSpecialTokens: false })[0]).toBe(1);
  expect(ChatTemplate.load(TIDE, tokenizer).render(hi, { add_generation_prompt: false })).toBe('<|im_start|>user\nhi<|im_end|>\n');
});

describe('where the template comes from', () => {
  test('a chat_template.jinja beside the model wins', () => {
    expect(folder({ chat_template: 'old' }, { 'chat_template.jinja': 'new' }).render(hi)).toBe('new');
    expect(folder({ chat_template: 'old' }, { 'chat_template.json': '{"chat_template": "json"}' }).render(hi)).toBe('json');
  });

  test('a list of named templates: default, or tool_use when tools are given', () => {
    const list = {
      chat_template: [
        { name: 'default', template: 'plain' },
        { name: 'tool_use', template: 'tools {{ tools | length }}' },
      ],
    };
    expect(folder(list).render(hi)).toBe('plain');
    expect(folder(list).render(hi, { tools: [{}, {}] })).toBe('tools 2');
  });

  test('special tokens and extra variables are visible', () => {
    const template = folder({ bos_token: '<s>', eos_token: { content: '</s>' }, chat_template: '{{ bos_token }}{{ eos_token }}{{ mood }}' });
    expect(template.render(hi, { mood: '!' })).toBe('<s></s>!');
  });
});

describe('errors', () => {
  test('no template', () => {
    const template = folder({});
    expect(template.available).toBe(false);
    expect(() => template.render(hi)).toThrow(expect.objectContaining({ code: 'CHAT_TEMPLATE_MISSING' }));
  });

  test.each([
    ['the template raises', '{{ raise_exception("roles must alternate") }}', /roles must alternate/],
    ['the template is broken', '{% if %}', /chat template/],
  ])('%s', (_, chat_template, message) => {
    expect(() => folder({ chat_template }).render(hi)).toThrow(
      expect.objectContaining({ code: 'CHAT_TEMPLATE_FAILED', message: expect.stringMatching(message) }),
    );
  });

  test.each([
    ['not a list', 'hi', 'INVALID_ARGUMENT', 'messages'],
    ['no message', [], 'PROMPT_EMPTY', 'messages'],
    ['a string', ['hi'], 'INVALID_ARGUMENT', 'messages[0]'],
    ['no role', [{ role: 'user', content: 'x' }, { content: 'x' }], 'INVALID_ARGUMENT', 'messages[1].role'],
  ])('%s', (_, messages, code, field) => {
    expect(() => folder({ chat_template: 'x' }).render(messages as TemplateMessage[])).toThrow(
      expect.objectContaining({ code, details: expect.objectContaining({ field }) }),
    );
  });

  test.each([
    [7, 'stop'],
    [[''], 'stop[0]'],
    [['a', 3], 'stop[1]'],
    [['\ud83d'], 'stop[0]'],
    [Array(65).fill('a'), 'stop'],
  ])('stop strings %j', (stop, field) => {
    expect(() => validateStopStrings(stop)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT', details: expect.objectContaining({ field }) }));
  });

  test('stop strings: one, several, none', () => {
    expect(validateStopStrings('a')).toEqual(['a']);
    expect(validateStopStrings(['a', 'b', 'a'])).toEqual(['a', 'b']);
    expect(validateStopStrings(undefined)).toEqual([]);
  });
});
