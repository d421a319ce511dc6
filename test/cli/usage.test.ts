/**
 * Wrong usage. What must not happen: a wrong command line that loads a model, or an error without a way out of it.
 */
import { describe, expect, test } from 'vitest';
import { VERBS } from '../../src/cli/cli.ts';
import { cli } from './harness.ts';

const MODEL = ['--model', 'm'];

describe('help', () => {
  test('without a verb: the list of verbs, exit code 2; with --help 0', async () => {
    const bare = await cli([]);
    expect(bare.code).toBe(2);
    for (const verb of VERBS) expect(bare.stdout).toContain(verb.name);
    expect((await cli(['--help'])).code).toBe(0);
    expect((await cli(['help'])).stdout).toBe(bare.stdout);
  });

  test('--version prints the version of package.json', async () => {
    const { code, stdout } = await cli(['--version']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
    expect((await cli(['--version', '--json'])).events).toEqual([{ version: stdout.trim() }]);
  });

  test.each(VERBS.map((verb) => [verb.name, verb] as const))('%s --help shows every option, exit codes and an example', async (name, verb) => {
    const { code, stdout, engine } = await cli([...name.split(' '), '--help']);
    expect(code).toBe(0);
    expect(engine).toBeNull();
    for (const option of ['json', 'help', ...Object.keys(verb.options)]) expect(stdout).toContain(`--${option}`);
    expect(stdout).toMatch(/Exit codes:\n {2}0 /);
    expect(stdout).toMatch(/\n {2}2 +wrong usage\n/);
    expect(stdout).toContain(verb.examples[0]);
    expect(Math.max(...stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(120);
  });
});

describe('wrong usage is exit code 2, one line on standard error, and nothing is started', () => {
  test.each([
    [['genrate'], /unknown verb 'genrate'; did you mean 'generate'\?/],
    [['xyzzy'], /unknown verb 'xyzzy'; there are generate, chat/],
    [['--model', 'm'], /the verb comes first, not '--model'/],
    [['cache'], /cache needs one of stat, ls, verify/],
    [['cache', 'verfy'], /unknown verb 'cache verfy'; did you mean 'cache verify'\?/],
    [['generate', '--modle', 'm'], /unknown option --modle; did you mean --model\?/],
    [['generate', '--zzzz'], /unknown option --zzzz; see 'tidemark generate --help'/],
    [['generate', '-q'], /unknown option -q/],
    [['generate', 'hi'], /--model is missing: --model DIR/],
    [['generate', '--model'], /--model needs a value: --model DIR/],
    [['generate', '--model', '--stats', 'hi'], /--model needs a value/],
    [['generate', ...MODEL, '--json=yes', 'hi'], /--json takes no value/],
    [['generate', ...MODEL, '--max-tokens', 'ten', 'hi'], /--max-tokens must be an integer of at least 1, not 'ten'/],
    [['generate', ...MODEL, '--max-tokens', '0', 'hi'], /--max-tokens must be an integer of at least 1, not '0'/],
    [['generate', ...MODEL, '--max-tokens', '1e3', 'hi'], /must be an integer/],
    [['generate', ...MODEL, '--temperature', 'warm', 'hi'], /--temperature must be a number, not 'warm'/],
    [['generate', ...MODEL, '--device', 'tpu', 'hi'], /--device must be one of auto, cpu, gpu, not 'tpu'/],
    [['generate', ...MODEL, '--cache-max', 'lots', 'hi'], /--cache-max must be a size such as 500MB or 20GB/],
    [['generate', ...MODEL, '--cache', 'c', '--no-cache', 'hi'], /--cache and --no-cache exclude each other/],
    [['generate', ...MODEL, 'one', 'two'], /unexpected argument 'two'/],
    [['generate', ...MODEL, '--prompt-file', 'f', 'hi'], /the prompt argument and --prompt-file exclude each other/],
    [['generate', ...MODEL, '--prompt-file', '/nowhere/x'], /cannot read \/nowhere\/x \(ENOENT\)/],
    [['generate', ...MODEL, '--system', 's', 'hi'], /--system needs --chat/],
    [['eval', ...MODEL, '--tokens', '/nowhere/x'], /cannot read/],
  ])('%j', async (args, message) => {
    const { code, stdout, stderr, engine, engineOptions } = await cli(args);
    expect({ code, stdout, engine, engineOptions }).toEqual({ code: 2, stdout: '', engine: null, engineOptions: null });
    expect(stderr).toMatch(message);
    expect(stderr).toMatch(/^tidemark: [^\n]+ \(USAGE\)\n$/);
  });

  test('with --json the error is an object on standard output, with the suggestion in its details', async () => {
    const { code, events } = await cli(['generate', '--json', '--modle', 'm']);
    expect(code).toBe(2);
    expect(events).toEqual([{ error: { code: 'USAGE', message: expect.stringContaining('--modle'), details: { option: '--modle', suggestion: '--model' } } }]);
  });

  test("what follows '--' is no option", async () => {
    const { code, engine } = await cli(['generate', ...MODEL, '--', '--json']);
    expect(code).toBe(0);
    expect(engine?.requests[0]?.prompt).toBe('--json');
  });
});
