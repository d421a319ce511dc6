/**
 * `tidemark demo` (`npm start`): generate, be killed, start again, go on from the SSD. The exit code is 0 only if the
 * second process really took the prompt from the cache and answered what a process without a cache answers.
 */
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { CommandError } from './command-error.ts';
import { type ChildRun, runChild } from './demo-child.ts';
import { demoPrompt } from './demo-prompt.ts';
import { Interrupted } from './interrupts.ts';
import { formatCount, formatMs } from './units.ts';
import { type Context, defineVerb } from './verb.ts';

const OWN_MODEL = fileURLToPath(new URL('../../models/tide-5m', import.meta.url));
/** The first process is killed after this many tokens of the many it was asked for. */
const KILL_AFTER = 4;
const FIRST_ANSWER = 512;
const ANSWER = 32;

export const demo = defineVerb({
  name: 'demo',
  summary: 'Shows a restart: one process is killed while it answers, the next one goes on from the SSD.',
  options: {
    model: { type: 'text', short: 'm', value: 'DIR', help: 'MLX model folder', defaultText: 'models/tide-5m of the repository' },
    cache: {
      type: 'text',
      value: 'DIR',
      help: 'cache folder; one that was used before makes the first process warm, too',
      defaultText: "a fresh folder in the system's temporary folder, which is kept",
    },
  },
  notes: [
    'Three processes get the same prompt of about 3,000 tokens. The first one reads it and is killed (SIGKILL) after its first tokens. The second one has the same cache folder. ' +
      'The third one has no cache, and says what the right tokens are.',
  ],
  exitCodes: {
    0: 'the first process was killed, the second one took at least every prefix reported durable from the SSD, and the tokens of all three agree',
    1: 'one of these did not hold, or a process failed',
  },
  examples: ['tidemark demo', 'npm start'],
  run: async (values, _positionals, context) => {
    const model = values.model ?? OWN_MODEL;
    if (values.model === undefined && !existsSync(model)) {
      throw new CommandError('MODEL_NOT_HERE', 'the demo model is part of the repository, not of the installed package; give a model folder with --model DIR');
    }
    const work = mkdtempSync(join(tmpdir(), 'tidemark-demo-'));
    const cache = resolve(values.cache ?? join(work, 'cache'));
    mkdirSync(cache, { recursive: true });
    const promptFile = join(work, 'prompt.txt');
    writeFileSync(promptFile, demoPrompt());
    return play({ model, cache, promptFile, context });
  },
});

interface Stage {
  model: string;
  cache: string;
  promptFile: string;
  context: Context;
}

interface Check {
  what: string;
  held: boolean;
}

async function play(stage: Stage): Promise<number> {
  const { model, cache, context } = stage;
  const say = async (text: string): Promise<void> => {
    if (!context.out.json) await context.out.line(text);
  };
  await say(`model  ${model}\ncache  ${cache}\n`);

  const first = await child(stage, 'process 1', ['--cache', cache, '--max-tokens', String(FIRST_ANSWER)], KILL_AFTER);
  await say(`1  a process reads the prompt and answers: first token after ${formatMs(first.firstTokenMs)}`);
  await say(
    `   killed (${first.signal ?? 'NOT killed'}) after ${formatCount(first.tokenIds.length, 'token')}; durable by then: the first ${formatCount(first.durableTokens, 'token')}`,
  );

  const second = await child(stage, 'process 2', ['--cache', cache, '--max-tokens', String(ANSWER)]);
  const { promptTokens, cachedTokens } = second.result!.usage;
  const miss = second.result!.missReason;
  await say(`2  a new process on the same cache, same prompt: first token after ${formatMs(second.firstTokenMs)}`);
  await say(
    `   ${cachedTokens.toLocaleString('en-US')} of ${formatCount(promptTokens, 'prompt token')} came from the SSD${miss === null ? '' : ` (miss: ${miss})`}`,
  );

  const reference = await child(stage, 'process 3', ['--no-cache', '--max-tokens', String(ANSWER)]);
  await say(`3  a process without a cache: first token after ${formatMs(reference.firstTokenMs)}`);

  const checks = check(first, second, reference);
  const passed = checks.every(({ held }) => held);
  await context.out.event({
    model,
    cache,
    promptTokens,
    cachedTokens,
    missReason: miss,
    firstTokenMs: { killed: first.firstTokenMs, restarted: second.firstTokenMs, uncached: reference.firstTokenMs },
    loadMs: { killed: first.loadMs, restarted: second.loadMs, uncached: reference.loadMs },
    durableTokens: first.durableTokens,
    text: second.text,
    checks,
    passed,
  });
  await say(`\nanswer: ${JSON.stringify(second.text)}\n`);
  for (const { what, held } of checks) await say(`${held ? 'yes' : 'NO '}  ${what}`);
  await say(`\nFirst token ${(first.firstTokenMs / second.firstTokenMs).toFixed(1)} times as fast after the restart. The cache lies in ${cache}`);
  return passed ? 0 : 1;
}

function check(first: ChildRun, second: ChildRun, reference: ChildRun): Check[] {
  const { promptTokens, cachedTokens } = second.result!.usage;
  const same = (a: readonly number[], b: readonly number[]): boolean => a.length === b.length && a.every((id, i) => id === b[i]);
  // The last prompt token is always computed: its logits are the answer's first.
  const owed = Math.min(first.durableTokens, promptTokens - 1);
  return [
    { what: 'the first process was ended by SIGKILL in the middle of its answer', held: first.signal === 'SIGKILL' && first.result === null },
    { what: 'it had reported a prefix as durable', held: first.durableTokens > 0 },
    { what: 'the second process took at least that prefix from the SSD', held: cachedTokens > 0 && cachedTokens >= owed },
    {
      what: `its ${second.tokenIds.length} tokens are those of the process without a cache`,
      held: second.tokenIds.length > 0 && same(second.tokenIds, reference.tokenIds),
    },
    {
      what: `the killed process's ${first.tokenIds.length} tokens are the first of them`,
      held: same(first.tokenIds.slice(0, ANSWER), reference.tokenIds.slice(0, first.tokenIds.length)),
    },
    { what: 'the process without a cache took nothing from one', held: reference.result!.usage.cachedTokens === 0 },
  ];
}

async function child({ model, promptFile, context }: Stage, name: string, args: readonly string[], killAfterTokens?: number): Promise<ChildRun> {
  const { out, interrupts } = context;
  let running: ChildProcess | null = null;
  let stopped: Interrupted | null = null;
  const run = await interrupts
    .during(
      (signal) => {
        stopped = new Interrupted(signal);
        running?.kill('SIGKILL');
      },
      () =>
        runChild({
          // Greedy, past the end tokens, and in float32: with 16-bit logits the two best are often equal, and then which one
          // is taken depends on how the prompt was cut into steps.
          args: [
            '--model',
            model,
            '--prompt-file',
            promptFile,
            '--compute',
            'float32',
            '--temperature',
            '0',
            '--repetition-penalty',
            '1',
            '--ignore-eos',
            ...args,
          ],
          ...(killAfterTokens === undefined ? {} : { killAfterTokens }),
          limitMs: 120_000,
          onStart: (process) => {
            running = process;
            out.progress(`${name}: loading`);
          },
          onProgress: (text) => out.progress(`${name}: ${text}`),
        }),
    )
    .catch((error: unknown) => {
      throw stopped ?? error;
    })
    .finally(() => out.clearProgress());
  if (stopped !== null) throw stopped;
  if (killAfterTokens === undefined && run.result === null)
    throw new CommandError('DEMO_CHILD', `${name} ended without a result (${run.signal ?? run.exitCode})`);
  return run;
}
