/**
 * Ctrl-C and SIGTERM. A verb registers what an interrupt stops; without a handler, or at the second interrupt in a
 * row, the program ends at once. Ending at once is safe for the cache: what is not yet renamed into it is not in it.
 */

/** What stops a verb from outside. SIGPIPE stands for a reader of standard output that went away (`tidemark … | head`). */
export type InterruptSignal = 'SIGINT' | 'SIGTERM' | 'SIGPIPE';
/** Exit codes by the shell's convention, 128 + signal number. */
export const SIGNAL_EXIT_CODES: Readonly<Record<InterruptSignal, number>> = { SIGINT: 130, SIGTERM: 143, SIGPIPE: 141 };

/** The reason a verb's request is aborted with; it comes back out of the verb as the error. */
export class Interrupted extends Error {
  override readonly name = 'Interrupted';
  readonly code = 'INTERRUPTED';
  readonly signal: InterruptSignal;
  constructor(signal: InterruptSignal) {
    super(`stopped by ${signal}`);
    this.signal = signal;
  }
}

/** `process`, as far as signals go. */
export interface SignalSource {
  on(signal: 'SIGINT' | 'SIGTERM', listener: (signal: InterruptSignal) => void): unknown;
  off(signal: 'SIGINT' | 'SIGTERM', listener: (signal: InterruptSignal) => void): unknown;
}

export class Interrupts {
  readonly #source: SignalSource;
  readonly #exitNow: (code: number) => void;
  #handler: ((signal: InterruptSignal) => void) | null = null;
  #pending = false;

  constructor(source: SignalSource, exitNow: (code: number) => void) {
    this.#source = source;
    this.#exitNow = exitNow;
  }

  start(): void {
    this.#source.on('SIGINT', this.#receive);
    this.#source.on('SIGTERM', this.#receive);
  }

  stop(): void {
    this.#source.off('SIGINT', this.#receive);
    this.#source.off('SIGTERM', this.#receive);
  }

  /** Runs `work`; an interrupt meanwhile calls `stop` once, the next one ends the program. */
  async during<R>(stop: (signal: InterruptSignal) => void, work: () => Promise<R>): Promise<R> {
    const outer = this.#handler;
    this.#handler = stop;
    this.#pending = false;
    try {
      return await work();
    } finally {
      this.#handler = outer;
      this.#pending = false;
    }
  }

  readonly #receive = (signal: InterruptSignal): void => {
    const handler = this.#handler;
    if (handler === null || this.#pending) this.#exitNow(SIGNAL_EXIT_CODES[signal]);
    else {
      this.#pending = true;
      handler(signal);
    }
  };
}
