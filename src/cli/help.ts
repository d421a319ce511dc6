/**
 * The text of --help, made from the verb's own tables.
 */
import type { Option, OptionTable } from './options.ts';
import { valueName } from './options.ts';
import type { AnyVerb } from './verb.ts';

/** Options that every verb has. */
export const COMMON_OPTIONS = {
  json: { type: 'flag', help: 'machine-readable output on standard output; errors as {"error":{"code","message","details"}}' },
  help: { type: 'flag', short: 'h', help: 'show this text' },
} as const satisfies OptionTable;

const WIDTH = 100;
const EXIT_CODES: Readonly<Record<number, string>> = {
  0: 'done',
  1: 'failed',
  2: 'wrong usage',
  70: 'the device takes no more work; start again',
  130: 'stopped by Ctrl-C',
};

export function verbHelp(verb: AnyVerb): string {
  const arg = verb.positionals === undefined ? '' : ` ${verb.positionals.text}`;
  const lines = [`Usage: tidemark ${verb.name} [options]${arg}`, '', ...wrap(verb.summary, ''), '', 'Options:'];
  lines.push(...optionLines({ ...verb.options, ...COMMON_OPTIONS }));
  for (const note of verb.notes ?? []) lines.push('', ...wrap(note, ''));
  lines.push('', 'Exit codes:');
  const codes = { ...EXIT_CODES, ...verb.exitCodes };
  for (const [code, text] of Object.entries(codes)) lines.push(...wrap(text, `  ${code.padEnd(5)}`));
  lines.push('', verb.examples.length === 1 ? 'Example:' : 'Examples:', ...verb.examples.map((example) => `  ${example}`));
  return `${lines.join('\n')}\n`;
}

export function programHelp(verbs: readonly AnyVerb[]): string {
  const width = Math.max(...verbs.map((verb) => verb.name.length)) + 2;
  const lines = ['Usage: tidemark <verb> [options]', '', 'Runs MLX models whose KV cache lives on SSD.', '', 'Verbs:'];
  for (const verb of verbs) lines.push(...wrap(verb.summary, `  ${verb.name.padEnd(width)}`));
  lines.push('', 'Every verb has --help (options, defaults, exit codes, an example) and --json.', 'tidemark --version prints the version.');
  return `${lines.join('\n')}\n`;
}

function optionLines(table: OptionTable): string[] {
  const heads = Object.entries(table).map(([name, option]) =>
    `  ${option.short === undefined ? '' : `-${option.short}, `}--${name} ${valueName(option)}`.trimEnd(),
  );
  const column = Math.min(34, Math.max(...heads.map((head) => head.length)) + 2);
  return Object.values(table).flatMap((option, i) => {
    const head = heads[i]!;
    const text = describe(option);
    return head.length + 2 <= column ? wrap(text, head.padEnd(column)) : [head, ...wrap(text, ' '.repeat(column))];
  });
}

function describe(option: Option): string {
  const parts = [option.help];
  if (option.required === true) parts.push('(required)');
  if (option.defaultText !== undefined) parts.push(`(default: ${option.defaultText})`);
  return parts.join(' ');
}

/** Breaks text into lines; the first starts with `head`, the others are indented as far. */
function wrap(text: string, head: string): string[] {
  const indent = ' '.repeat(head.length);
  const lines: string[] = [];
  let line = head;
  for (const word of text.split(' ')) {
    if (line.length + word.length + 1 > WIDTH && line.trim() !== '' && line !== head) {
      lines.push(line.trimEnd());
      line = indent;
    }
    line += line === head || line === indent ? word : ` ${word}`;
  }
  lines.push(line.trimEnd());
  return lines;
}
