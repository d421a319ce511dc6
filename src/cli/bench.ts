/**
 * `tidemark bench`: runs a benchmark of the repository this command line was built in.
 */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { CommandError } from './command-error.ts';
import { defineVerb } from './verb.ts';

const RUNNER = new URL('../../bench/run.mjs', import.meta.url);

export const bench = defineVerb({
  name: 'bench',
  summary: 'Runs a benchmark of the repository by its name.',
  positionals: { text: 'NAME', min: 0, max: 1 },
  options: { check: { type: 'flag', help: 'fail when a figure is below its floor' } },
  notes: [
    'Each benchmark prints one JSON object and writes it to reports/bench-NAME.json. Without NAME the known names are listed. ' +
      'Benchmarks are part of the repository, not of the installed package; there, `npm run bench -- NAME` does the same.',
  ],
  exitCodes: { 1: 'failed, or below a floor with --check' },
  examples: ['tidemark bench restart --check'],
  run: async (values, positionals, context) => {
    if (!existsSync(RUNNER)) {
      throw new CommandError(
        'BENCH_NOT_HERE',
        'the benchmarks are not part of the installed package; clone the repository and run `npm run bench -- NAME` there',
      );
    }
    const args = [fileURLToPath(RUNNER), ...positionals, ...(values.check ? ['--check'] : [])];
    const child = spawn(process.execPath, args, { stdio: 'inherit' });
    return context.interrupts.during(
      (signal) => void child.kill(signal === 'SIGPIPE' ? 'SIGTERM' : signal),
      () =>
        new Promise<number>((resolve, reject) => {
          child.once('error', reject);
          child.once('exit', (code, signal) => resolve(code ?? (signal === 'SIGINT' ? 130 : signal === 'SIGTERM' ? 143 : 1)));
        }),
    );
  },
});
