/**
 * The abort signals of an engine's requests. One signal may serve any number of them, and gets one listener: with one for each
 * request Node would warn of a leak.
 */
export class AbortSignals {
  readonly #requests = new Map<AbortSignal, Set<number>>();
  readonly #onAbort: (requestNo: number, signal: AbortSignal) => void;

  constructor(onAbort: (requestNo: number, signal: AbortSignal) => void) {
    this.#onAbort = onAbort;
  }

  add(signal: AbortSignal, requestNo: number): void {
    const known = this.#requests.get(signal);
    if (known !== undefined) {
      known.add(requestNo);
      return;
    }
    this.#requests.set(signal, new Set([requestNo]));
    signal.addEventListener('abort', this.#fired, { once: true });
  }

  remove(signal: AbortSignal, requestNo: number): void {
    const known = this.#requests.get(signal);
    if (known?.delete(requestNo) !== true || known.size > 0) return;
    this.#requests.delete(signal);
    signal.removeEventListener('abort', this.#fired);
  }

  readonly #fired = (event: Event): void => {
    const signal = event.target as AbortSignal;
    // An abort takes its request out of the set.
    for (const requestNo of [...(this.#requests.get(signal) ?? [])]) this.#onAbort(requestNo, signal);
  };
}
