#!/usr/bin/env node
/**
 * Entry of the `tidemark` command.
 */
import { runCli } from './cli.ts';
import { engineDeps } from './engine-deps.ts';
import { Interrupts } from './interrupts.ts';
import { Output } from './output.ts';

const exitNow = (code: number): void => process.exit(code);
// The code is set, not forced: output still in a pipe is written before the process ends.
process.exitCode = await runCli(process.argv.slice(2), {
  deps: engineDeps,
  out: new Output(process.stdout, process.stderr),
  stdin: process.stdin,
  env: process.env,
  interrupts: new Interrupts(process, exitNow),
  exitNow,
});
