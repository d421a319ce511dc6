/**
 * An error as the command line shows it: one line on standard error, the whole of it with --json, and an exit code.
 */
import { isDeviceLost, TidemarkError } from '../shared/errors.ts';
import { CommandError, UsageError } from './command-error.ts';
import { Interrupted, SIGNAL_EXIT_CODES } from './interrupts.ts';
import type { Context } from './verb.ts';

/** A supervisor that starts the program again helps; nothing else does. */
export const DEVICE_LOST_EXIT_CODE = 70;

export async function reportError(error: unknown, { out, env }: Context): Promise<number> {
  const known = error instanceof TidemarkError || error instanceof CommandError || error instanceof Interrupted;
  const code = known ? error.code : 'INTERNAL';
  const message = error instanceof Error ? error.message : String(error);
  const details = error instanceof TidemarkError || error instanceof CommandError ? error.details : {};
  await out.event({ error: { code, message, details } });
  if (!(error instanceof Interrupted && error.signal === 'SIGPIPE')) out.note(`tidemark: ${oneLine(message)} (${code})`);
  // An error of an unknown kind is a defect: its stack is what a report of it needs.
  const stack = error instanceof Error ? error.stack : undefined;
  if (stack !== undefined && (!known || env.TIDEMARK_DEBUG === '1')) out.note(stack);
  if (error instanceof Interrupted) return SIGNAL_EXIT_CODES[error.signal];
  if (isDeviceLost(error)) return DEVICE_LOST_EXIT_CODE;
  return error instanceof UsageError || code === 'INVALID_ARGUMENT' ? 2 : 1;
}

function oneLine(text: string): string {
  return text.replace(/\s*\n\s*/g, ' ');
}
