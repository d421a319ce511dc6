/**
 * The command line without the process around it: arguments in, exit code out.
 */
import { bench } from './bench.ts';
import { CACHE_VERBS } from './cache-verbs.ts';
import { chat } from './chat.ts';
import { UsageError } from './command-error.ts';
import { demo } from './demo.ts';
import { doctor } from './doctor.ts';
import { evaluate } from './eval.ts';
import { generate } from './generate.ts';
import { COMMON_OPTIONS, programHelp, verbHelp } from './help.ts';
import { checkRequired, parseOptions } from './options.ts';
import { reportError } from './report-error.ts';
import { closest } from './suggest.ts';
import type { AnyVerb, Context } from './verb.ts';
import { version } from './version.ts';

export const VERBS: readonly AnyVerb[] = [generate, chat, bench, ...CACHE_VERBS, doctor, evaluate, demo];

/** Carries out one command line. Never throws: every error becomes a line and an exit code. */
export async function runCli(argv: readonly string[], context: Context): Promise<number> {
  // Read before the options are, so that a usage error is reported in the form that was asked for.
  const end = argv.indexOf('--');
  context.out.json = argv.slice(0, end < 0 ? argv.length : end).includes('--json');
  context.interrupts.start();
  try {
    return await dispatch(argv, context);
  } catch (error) {
    return await reportError(error, context);
  } finally {
    context.out.clearProgress();
    context.interrupts.stop();
  }
}

async function dispatch(argv: readonly string[], context: Context): Promise<number> {
  const [first] = argv;
  if (first === undefined || first === '--help' || first === '-h' || first === 'help') {
    await context.out.write(programHelp(VERBS));
    return first === undefined ? 2 : 0;
  }
  if (first === '--version' || first === '-v') {
    await context.out.line(context.out.json ? JSON.stringify({ version: version() }) : version());
    return 0;
  }
  const { verb, args } = findVerb(argv);
  const options = { ...verb.options, ...COMMON_OPTIONS };
  const { values, positionals } = parseOptions(verb.name, options, args);
  if (values.help) {
    await context.out.write(verbHelp(verb));
    return 0;
  }
  checkRequired(verb.name, options, values);
  const { min, max, text } = verb.positionals ?? { min: 0, max: 0, text: '' };
  if (positionals.length < min) throw new UsageError(verb.name, `an argument is missing: ${text}`);
  if (positionals.length > max) throw new UsageError(verb.name, `unexpected argument '${positionals[max]}'`, { received: positionals[max] });
  context.out.json = values.json;
  return verb.run(values as never, positionals, context);
}

/** The verb named by the first word, or by the first two (`cache stat`). */
function findVerb(argv: readonly string[]): { verb: AnyVerb; args: readonly string[] } {
  const [first, second] = argv as [string, string?];
  const one = VERBS.find((verb) => verb.name === first);
  if (one !== undefined) return { verb: one, args: argv.slice(1) };
  const group = VERBS.filter((verb) => verb.name.startsWith(`${first} `));
  if (group.length > 0) {
    const two = group.find((verb) => verb.name === `${first} ${second}`);
    if (two !== undefined) return { verb: two, args: argv.slice(2) };
    const names = group.map((verb) => verb.name.slice(first.length + 1));
    const near = second === undefined || second.startsWith('-') ? null : closest(second, names);
    const problem =
      second === undefined || second.startsWith('-')
        ? `${first} needs one of`
        : `unknown verb '${first} ${second}'; ${near === null ? '' : `did you mean '${first} ${near}'? `}there are`;
    throw new UsageError('', `${problem} ${names.join(', ')}`, near === null ? {} : { suggestion: `${first} ${near}` });
  }
  const names = [...new Set(VERBS.map((verb) => verb.name.split(' ')[0]!))];
  const near = first.startsWith('-') ? null : closest(first, names);
  const what = first.startsWith('-') ? `the verb comes first, not '${first}'` : `unknown verb '${first}'`;
  throw new UsageError(
    '',
    `${what}${near === null ? `; there are ${names.join(', ')}` : `; did you mean '${near}'?`}`,
    near === null ? {} : { suggestion: near },
  );
}
