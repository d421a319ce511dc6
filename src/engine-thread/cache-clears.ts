/**
 * When the allocator's cache is given back. Never at once after an answer (its successor would fault every page in again): that is due 8
 * steps after the last finisher. While work runs it is cleared after each chunk of prefill and every 512 decode steps; a prefill that ends
 * otherwise than in an answer leaves much behind, and is followed by a clear at once.
 * Each clear goes through `syncAndClearCache` with the engine's stream.
 */
const STEPS_AFTER_FINISH = 8;
const DECODE_STEPS_BETWEEN = 512;

export class CacheClears {
  readonly #clear: () => void;
  readonly #chunk: number;
  #step = 0;
  #dueStep: number | null = null;
  #decodeSteps = 0;
  #prefilled = 0;

  /**
   * @param clear drains the engine's stream and clears, see mlx/metal-sync.ts
   * @param chunk tokens of a chunk of prefill; passes that end earlier, at a boundary, are counted together
   */
  constructor(clear: () => void, chunk: number) {
    this.#clear = clear;
    this.#chunk = chunk;
  }

  /** A further finisher moves the due step on, so that each gets its full 8. */
  afterFinish(): void {
    this.#dueStep = this.#step + STEPS_AFTER_FINISH;
  }

  /** A prefill was aborted, or a sequence failed; what it held is released. */
  afterBrokenOff(): void {
    this.#clear();
  }

  afterPrefillPass(tokens: number): void {
    this.#prefilled += tokens;
    const due = this.#isDue();
    if (this.#prefilled >= this.#chunk) this.#prefilled = 0;
    else if (!due) return;
    this.#clear();
  }

  afterDecodeStep(): void {
    this.#decodeSteps++;
    const due = this.#isDue();
    if (this.#decodeSteps >= DECODE_STEPS_BETWEEN) this.#decodeSteps = 0;
    else if (!due) return;
    this.#clear();
  }

  /** One more step; whether the clear after the last finisher is due with it. */
  #isDue(): boolean {
    this.#step++;
    if (this.#dueStep === null || this.#step < this.#dueStep) return false;
    this.#dueStep = null;
    return true;
  }
}
