/**
 * Everything the command line prints. Results go to standard output, progress and messages to standard error; with
 * --json, events and results are JSON lines on standard output.
 */
import type { Writable } from 'node:stream';

export interface OutputStream extends Writable {
  isTTY?: boolean;
  columns?: number;
}

export class Output {
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  /** Set once the arguments are read. */
  json = false;
  /** The reader of standard output has gone (`tidemark … | head`): nothing more can be said there. */
  broken = false;
  #progressShown = false;
  #progressAt = Number.NEGATIVE_INFINITY;
  #onBroken: (() => void) | null = null;

  constructor(stdout: OutputStream, stderr: OutputStream) {
    this.stdout = stdout;
    this.stderr = stderr;
    stdout.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') throw error;
      this.broken = true;
      this.#onBroken?.();
    });
  }

  /** Called once when the reader of standard output goes away. */
  whenBroken(then: (() => void) | null): void {
    this.#onBroken = then;
    if (this.broken) then?.();
  }

  /** Writes text; resolves when the stream has room again, so that a slow reader slows the answer down. */
  async write(text: string): Promise<void> {
    if (this.broken || text === '') return;
    this.clearProgress();
    if (this.stdout.write(text)) return;
    await new Promise<void>((resolve) => {
      const settle = (): void => {
        this.stdout.off('drain', settle).off('close', settle).off('error', settle);
        resolve();
      };
      this.stdout.on('drain', settle).on('close', settle).on('error', settle);
    });
  }

  line(text: string): Promise<void> {
    return this.write(`${text}\n`);
  }

  /** One JSON line on standard output; nothing without --json. */
  async event(value: Record<string, unknown>): Promise<void> {
    if (this.json) await this.write(`${JSON.stringify(value)}\n`);
  }

  /** A line for a person, on standard error. */
  note(text: string): void {
    this.clearProgress();
    this.stderr.write(`${text}\n`);
  }

  /** A line that is rewritten in place, on a terminal only, at most twenty times a second. */
  progress(text: string): void {
    if (this.stderr.isTTY !== true || this.json) return;
    const now = performance.now();
    if (now - this.#progressAt < 50) return;
    this.#progressAt = now;
    this.#progressShown = true;
    this.stderr.write(`\r\x1b[K${text.slice(0, (this.stderr.columns || 80) - 1)}`);
  }

  clearProgress(): void {
    if (!this.#progressShown) return;
    this.#progressShown = false;
    this.#progressAt = Number.NEGATIVE_INFINITY;
    this.stderr.write('\r\x1b[K');
  }
}
