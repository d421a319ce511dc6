/** Lays out a conversation as the model expects it, with the Jinja template that came with the model. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Template } from '@huggingface/jinja';
import { TidemarkError } from '../../shared/errors.ts';
import { invalidArgument, isObject } from '../models/checks.ts';
import { readJsonObject } from '../models/json-file.ts';
import type { Tokenizer } from './tokenizer.ts';

export interface TemplateMessage {
  role: string;
  content?: unknown;
  [field: string]: unknown;
}

export class ChatTemplate {
  readonly #templates: ReadonlyMap<string, string>;
  readonly #parsed = new Map<string, Template>();
  readonly #dir: string;
  readonly #tokens: Record<string, string>;

  private constructor(dir: string, templates: ReadonlyMap<string, string>, tokens: Record<string, string>) {
    this.#dir = dir;
    this.#templates = templates;
    this.#tokens = tokens;
  }

  /** Looks in chat_template.jinja, chat_template.json and tokenizer_config.json. A folder without one loads; rendering then fails. */
  static load(dir: string, tokenizer: Tokenizer): ChatTemplate {
    const templates = new Map<string, string>();
    const configured = tokenizer.config.chat_template;
    if (typeof configured === 'string') templates.set('default', configured);
    else if (Array.isArray(configured)) {
      for (const entry of configured) {
        if (isObject(entry) && typeof entry.name === 'string' && typeof entry.template === 'string') templates.set(entry.name, entry.template);
      }
    }
    const json = readJsonObject(join(dir, 'chat_template.json'), { missing: null, invalid: 'TOKENIZER_INVALID' });
    if (typeof json?.chat_template === 'string') templates.set('default', json.chat_template);
    const file = join(dir, 'chat_template.jinja');
    if (existsSync(file)) templates.set('default', readFileSync(file, 'utf8'));

    const tokens: Record<string, string> = {};
    for (const name of ['bos_token', 'eos_token', 'unk_token', 'pad_token', 'sep_token', 'cls_token', 'mask_token']) {
      const text = tokenizer.specialText(name);
      if (text !== null) tokens[name] = text;
    }
    return new ChatTemplate(dir, templates, tokens);
  }

  get available(): boolean {
    return this.#templates.has('default');
  }

  /**
   * @param extra further template variables, e.g. `{ tools, enable_thinking: false }`; `add_generation_prompt` is true unless given
   * @throws {TidemarkError} INVALID_ARGUMENT, CHAT_TEMPLATE_MISSING, CHAT_TEMPLATE_FAILED
   */
  render(messages: readonly TemplateMessage[], extra: Record<string, unknown> = {}): string {
    validateMessages(messages);
    const name = extra.tools !== undefined && this.#templates.has('tool_use') ? 'tool_use' : 'default';
    try {
      return this.#template(name).render({ add_generation_prompt: true, tools: null, ...this.#tokens, ...extra, messages });
    } catch (error) {
      if (error instanceof TidemarkError) throw error;
      throw new TidemarkError('CHAT_TEMPLATE_FAILED', `The model's chat template refused the messages: ${(error as Error).message}`, {
        cause: error,
        details: { path: this.#dir },
      });
    }
  }

  #template(name: string): Template {
    const known = this.#parsed.get(name);
    if (known !== undefined) return known;
    const source = this.#templates.get(name);
    if (source === undefined) {
      throw new TidemarkError(
        'CHAT_TEMPLATE_MISSING',
        `The model in ${this.#dir} has no chat template. Pass \`prompt\` or \`tokens\` instead of \`messages\`.`,
        {
          details: { path: this.#dir },
        },
      );
    }
    const template = new Template(source);
    this.#parsed.set(name, template);
    return template;
  }
}

function validateMessages(messages: unknown): asserts messages is readonly TemplateMessage[] {
  if (!Array.isArray(messages)) throw invalidArgument('messages', 'a list of messages', messages);
  if (messages.length === 0)
    throw new TidemarkError('PROMPT_EMPTY', 'messages: expected at least one message, received none.', { details: { field: 'messages' } });
  messages.forEach((message: unknown, i) => {
    if (!isObject(message)) throw invalidArgument(`messages[${i}]`, 'an object with role and content', message);
    else if (typeof message.role !== 'string' || message.role === '') throw invalidArgument(`messages[${i}].role`, 'a non-empty string', message.role);
  });
}
