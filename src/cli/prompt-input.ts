/**
 * Where the prompt of `generate` comes from: exactly one of the argument, a file, a conversation, token ids, or
 * standard input.
 */
import { readFileSync } from 'node:fs';
import type { Readable } from 'node:stream';
import type { ChatMessage, PromptInput } from '../host/api.ts';
import { UsageError } from './command-error.ts';

export interface PromptSources {
  verb: string;
  argument: string | undefined;
  promptFile: string | undefined;
  messages: string | undefined;
  tokens: string | undefined;
  /** Lay the text out as one user message, by the model's chat template. */
  chat: boolean;
  system: string | undefined;
}

export async function readPrompt(sources: PromptSources, stdin: Readable & { isTTY?: boolean }): Promise<PromptInput> {
  const { verb } = sources;
  const named = [
    ['the prompt argument', sources.argument],
    ['--prompt-file', sources.promptFile],
    ['--messages', sources.messages],
    ['--tokens', sources.tokens],
  ].filter((source) => source[1] !== undefined);
  if (named.length > 1) throw new UsageError(verb, `${named.map((source) => source[0]).join(' and ')} exclude each other`);
  if (sources.system !== undefined && !sources.chat) throw new UsageError(verb, '--system needs --chat');
  if (sources.chat && (sources.messages ?? sources.tokens) !== undefined) throw new UsageError(verb, '--chat is for a prompt in text form');
  if (sources.messages !== undefined) return { messages: readMessages(verb, sources.messages) };
  if (sources.tokens !== undefined) return { tokens: readTokens(verb, sources.tokens) };
  const text = await readText(sources, stdin);
  if (!sources.chat) return { prompt: text };
  const system: ChatMessage[] = sources.system === undefined ? [] : [{ role: 'system', content: sources.system }];
  return { messages: [...system, { role: 'user', content: text }] };
}

async function readText({ verb, argument, promptFile }: PromptSources, stdin: Readable & { isTTY?: boolean }): Promise<string> {
  if (argument !== undefined && argument !== '-') return argument;
  // Editors and echo end a file with a newline that is not meant as part of the prompt.
  if (promptFile !== undefined && promptFile !== '-') return readFile(verb, '--prompt-file', promptFile).replace(/\r?\n$/, '');
  if (stdin.isTTY === true) throw new UsageError(verb, 'no prompt: give it as an argument, with --prompt-file or --messages, or on standard input');
  let text = '';
  stdin.setEncoding('utf8');
  for await (const part of stdin) text += part;
  return text.replace(/\r?\n$/, '');
}

/** A file named on the command line; not being able to read it is an error of the command line. */
export function readFile(verb: string, option: string, path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new UsageError(verb, `${option}: cannot read ${path} (${code ?? String(error)})`, { option, path, errno: code });
  }
}

export function readJson(verb: string, option: string, path: string): unknown {
  const text = readFile(verb, option, path);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new UsageError(verb, `${option}: ${path} is not JSON: ${(error as Error).message}`, { option, path });
  }
}

function readMessages(verb: string, path: string): ChatMessage[] {
  const value = readJson(verb, '--messages', path);
  const valid = Array.isArray(value) && value.length > 0 && value.every((message) => typeof message?.role === 'string' && typeof message?.content === 'string');
  if (!valid) throw new UsageError(verb, `--messages: ${path} must hold a JSON array of {"role": "…", "content": "…"}`, { option: '--messages', path });
  return value as ChatMessage[];
}

function readTokens(verb: string, path: string): number[] {
  const value = readJson(verb, '--tokens', path);
  if (isTokenList(value)) return value;
  throw new UsageError(verb, `--tokens: ${path} must hold a JSON array of token ids`, { option: '--tokens', path });
}

export function isTokenList(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && id >= 0);
}
