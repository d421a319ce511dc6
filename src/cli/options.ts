/**
 * Option tables: what a verb accepts, how a value is read, what the help says. Verbs share the tables of
 * `shared-options.ts`, so an option has one name, one meaning and one help text everywhere.
 */
import { parseArgs } from 'node:util';
import { UsageError } from './command-error.ts';
import { closest } from './suggest.ts';

interface OptionBase {
  readonly help: string;
  readonly short?: string;
  /** What the help names as the default; the value itself is the engine's. */
  readonly defaultText?: string;
  readonly required?: boolean;
}
export interface FlagOption extends OptionBase {
  readonly type: 'flag';
}
export interface TextOption extends OptionBase {
  readonly type: 'text';
  readonly value: string;
}
export interface ListOption extends OptionBase {
  readonly type: 'list';
  readonly value: string;
}
export interface NumberOption extends OptionBase {
  readonly type: 'integer' | 'number' | 'bytes';
  readonly value: string;
  readonly min?: number;
  readonly max?: number;
}
export interface ChoiceOption extends OptionBase {
  readonly type: 'choice';
  readonly choices: readonly string[];
}
export type Option = FlagOption | TextOption | ListOption | NumberOption | ChoiceOption;
export type OptionTable = Readonly<Record<string, Option>>;

type ValueOf<O extends Option> = O extends FlagOption
  ? boolean
  : O extends ListOption
    ? string[]
    : O extends NumberOption
      ? number | undefined
      : O extends { choices: readonly (infer C)[] }
        ? C | undefined
        : O extends { required: true }
          ? string
          : string | undefined;
/** The values of a table, typed from it: flags are always there, everything else may be undefined. */
export type Values<T extends OptionTable> = { -readonly [K in keyof T]: ValueOf<T[K]> };

export interface Parsed<T extends OptionTable> {
  values: Values<T>;
  positionals: string[];
}

/** Reads the arguments of one verb; throws a UsageError that names the option and, where one is near, the right spelling. */
export function parseOptions<T extends OptionTable>(verb: string, table: T, args: readonly string[]): Parsed<T> {
  const config: Record<string, { type: 'string' | 'boolean'; short?: string; multiple: true }> = {};
  for (const [name, option] of Object.entries(table)) {
    config[name] = { type: option.type === 'flag' ? 'boolean' : 'string', multiple: true, ...(option.short === undefined ? {} : { short: option.short }) };
  }
  // Not strict: unknown options and missing values get messages of our own.
  const { tokens } = parseArgs({ args: [...args], options: config, strict: false, allowPositionals: true, tokens: true });
  const values: Record<string, unknown> = {};
  const positionals: string[] = [];
  for (const [name, option] of Object.entries(table)) values[name] = option.type === 'flag' ? false : option.type === 'list' ? [] : undefined;
  for (const token of tokens) {
    if (token.kind === 'positional') positionals.push(token.value);
    if (token.kind !== 'option') continue;
    const option = table[token.name];
    if (option === undefined) throw unknownOption(verb, token.rawName, Object.keys(table));
    if (option.type === 'flag') {
      if (token.value !== undefined) throw new UsageError(verb, `${token.rawName} takes no value`, { option: token.rawName, received: token.value });
      values[token.name] = true;
      continue;
    }
    // "--model --json" is a forgotten value, not a model named "--json"; "--model=--json" says it is meant.
    if (token.value === undefined || (!token.inlineValue && token.value.startsWith('--'))) {
      throw new UsageError(verb, `${token.rawName} needs a value: ${token.rawName} ${valueName(option)}`, { option: token.rawName });
    }
    const value = readValue(verb, token.rawName, option, token.value);
    if (option.type === 'list') (values[token.name] as string[]).push(value as string);
    else values[token.name] = value;
  }
  return { values: values as Values<T>, positionals };
}

/** Options that must be given; tested after `--help` has had its chance. */
export function checkRequired(verb: string, table: OptionTable, values: Record<string, unknown>): void {
  for (const [name, option] of Object.entries(table)) {
    if (option.required === true && values[name] === undefined) {
      throw new UsageError(verb, `--${name} is missing: --${name} ${valueName(option)}`, { option: `--${name}` });
    }
  }
}

/** How the help writes the value of an option. */
export function valueName(option: Option): string {
  if (option.type === 'flag') return '';
  return option.type === 'choice' ? option.choices.join('|') : option.value;
}

function unknownOption(verb: string, rawName: string, names: readonly string[]): UsageError {
  const near = closest(rawName.replace(/^-+/, ''), names);
  const hint = near === null ? '' : `; did you mean --${near}?`;
  return new UsageError(verb, `unknown option ${rawName}${hint}`, { option: rawName, ...(near === null ? {} : { suggestion: `--${near}` }) });
}

function readValue(verb: string, rawName: string, option: Exclude<Option, FlagOption>, text: string): string | number {
  switch (option.type) {
    case 'text':
    case 'list':
      return text;
    case 'choice':
      if (option.choices.includes(text)) return text;
      throw new UsageError(verb, `${rawName} must be one of ${option.choices.join(', ')}, not '${text}'`, { option: rawName, received: text });
    case 'bytes':
      return inRange(verb, rawName, option, text, parseBytes(text));
    case 'integer':
      return inRange(verb, rawName, option, text, /^[+-]?\d+$/.test(text) ? Number(text) : Number.NaN);
    case 'number':
      return inRange(verb, rawName, option, text, text.trim() === '' ? Number.NaN : Number(text));
  }
}

function inRange(verb: string, rawName: string, option: NumberOption, text: string, value: number): number {
  const { min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY } = option;
  if (Number.isFinite(value) && value >= min && value <= max && (option.type === 'number' || Number.isSafeInteger(value))) return value;
  const kind = { integer: 'an integer', number: 'a number', bytes: 'a size such as 500MB or 20GB' }[option.type];
  const range = Number.isFinite(min) && Number.isFinite(max) ? ` from ${min} to ${max}` : Number.isFinite(min) ? ` of at least ${min}` : '';
  throw new UsageError(verb, `${rawName} must be ${kind}${range}, not '${text}'`, { option: rawName, received: text });
}

const UNITS: Record<string, number> = { '': 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, ki: 2 ** 10, mi: 2 ** 20, gi: 2 ** 30, ti: 2 ** 40 };

/** `20GB`, `20G`, `512MiB`, `1000`: K, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024. NaN when it is none of these. */
export function parseBytes(text: string): number {
  const match = /^(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?$/i.exec(text.trim());
  return match === null ? Number.NaN : Math.round(Number(match[1]) * UNITS[(match[2] ?? '').toLowerCase()]!);
}
