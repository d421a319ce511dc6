/**
 * Errors that are the command line's own, beside the library's TidemarkError.
 */

/** The command could not do what was asked: exit code 1. */
export class CommandError extends Error {
  override readonly name: string = 'CommandError';
  readonly code: string;
  readonly details: Record<string, unknown>;

  constructor(code: string, message: string, details: Record<string, unknown> = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

/** The command line cannot be carried out as written: exit code 2. The message ends by naming the help that explains it. */
export class UsageError extends CommandError {
  override readonly name = 'UsageError';

  /** `verb` is '' for the program itself. */
  constructor(verb: string, message: string, details: Record<string, unknown> = {}) {
    super('USAGE', `${message}; see 'tidemark ${verb === '' ? '' : `${verb} `}--help'`, details);
  }
}
