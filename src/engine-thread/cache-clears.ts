/**
 * When the allocator's cache is given back. Clearing is never done at once after a request (its successor would fault
 * every page in again): it is due 8 steps after the last finisher, and every 512 decode steps while answers run.
 * Each clear goes through `syncAndClearCache` with the engine's stream.
 */
const STEPS_AFTER_FINISH = 8;
const DECODE_STEPS_BETWEEN = 512;

export class CacheClears {
  readonly #clear: () => void;
  #step = 0;
  #dueStep: number | null = null;
  #decodeSteps = 0;

  /** `clear`: drains the engine's stream and clears, see mlx/metal-sync.ts. */
  constructor(clear: () => void) {
    this.#clear = clear;
  }

  /** A further finisher moves the due step on, so that each gets its full 8. */
  afterFinish(): void {
    this.#dueStep = this.#step + STEPS_AFTER_FINISH;
  }

  afterPrefillPass(): void {
    this.#tick();
  }

  afterDecodeStep(): void {
    this.#decodeSteps++;
    if (this.#decodeSteps >= DECODE_STEPS_BETWEEN) this.#now();
    else this.#tick();
  }

  #tick(): void {
    this.#step++;
    if (this.#dueStep !== null && this.#step >= this.#dueStep) this.#now();
  }

  #now(): void {
    this.#decodeSteps = 0;
    this.#dueStep = null;
    this.#clear();
  }
}
