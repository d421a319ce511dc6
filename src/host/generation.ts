/**
 * One answer on the app's main thread: an async iterator over chunks that the delivery port fills, plus a promise of
 * the whole. Leaving the loop aborts; a reader that stops reading pauses the sequence (the engine looks at how many
 * chunks were taken), it never fills memory.
 */
import type { Delivery } from '../shared/engine-protocol.ts';
import type { Chunk, Completion, Generation } from './api.ts';

export interface GenerationHooks {
  /** The reader took a chunk. */
  chunkRead(): void;
  /** The reader wants no more. */
  abort(): void;
}

type Ending = Extract<Delivery, { kind: 'end' }>;

export class GenerationStream implements Generation {
  readonly requestId: string;
  readonly #hooks: GenerationHooks;
  readonly #result: Promise<Completion>;
  readonly #chunks: Chunk[] = [];
  /** How many of `#chunks`, from the first on, the engine has been told are read. */
  #told = 0;
  /** Who reads: nobody yet, an iterator, or somebody who waits for `result` alone. */
  #reader: 'none' | 'iterator' | 'result' = 'none';
  readonly #texts: string[] = [];
  readonly #ids: number[] = [];
  #waiting: { resolve: (r: IteratorResult<Chunk>) => void; reject: (e: unknown) => void }[] = [];
  #over = false;
  #error: { reason: unknown } | null = null;
  #collect: boolean;
  #settle!: { resolve: (c: Completion) => void; reject: (e: unknown) => void };

  /** `collect`: chunks are not kept for an iterator, the result alone is wanted. */
  constructor(requestId: string, hooks: GenerationHooks, collect: boolean) {
    this.requestId = requestId;
    this.#hooks = hooks;
    this.#collect = collect;
    this.#result = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    // Most callers iterate and never look at `result`: its rejection must not count as unhandled.
    this.#result.catch(() => undefined);
  }

  /** One that never began: iteration and result reject with `reason`. */
  static failed(requestId: string, reason: unknown): GenerationStream {
    const stream = new GenerationStream(requestId, { chunkRead: () => undefined, abort: () => undefined }, false);
    stream.fail(reason);
    return stream;
  }

  /** Who waits for the whole takes every chunk as it comes, until somebody begins to iterate. */
  get result(): Promise<Completion> {
    if (this.#reader === 'none') {
      this.#reader = 'result';
      for (; this.#told < this.#chunks.length; this.#told++) this.#hooks.chunkRead();
    }
    return this.#result;
  }

  chunk(message: Extract<Delivery, { kind: 'chunk' }>): void {
    this.#texts.push(message.text);
    this.#ids.push(...message.tokenIds);
    if (this.#collect) this.#hooks.chunkRead();
    else this.#offer({ text: message.text, tokenIds: message.tokenIds, index: message.index });
  }

  end(message: Ending): void {
    this.#texts.push(message.text);
    this.#ids.push(...message.tokenIds);
    const { text, tokenIds, index, finishReason, usage, missReason } = message;
    if (!this.#collect) this.#offer({ text, tokenIds, index, finishReason, usage, missReason });
    this.#over = true;
    for (const waiter of this.#waiting.splice(0)) waiter.resolve({ done: true, value: undefined });
    this.#settle.resolve({
      requestId: this.requestId,
      text: this.#texts.join(''),
      tokenIds: this.#ids,
      finishReason,
      usage,
      missReason,
      timings: message.timings,
    });
  }

  /** Ends the iteration with `reason`: at once for a waiting reader, and instead of any chunk not yet read. */
  fail(reason: unknown): void {
    if (this.#over) return;
    this.#over = true;
    this.#error = { reason };
    this.#chunks.length = this.#told = 0;
    for (const waiter of this.#waiting.splice(0)) waiter.reject(reason);
    this.#settle.reject(reason);
  }

  next(): Promise<IteratorResult<Chunk>> {
    this.#reader = 'iterator';
    const chunk = this.#chunks.shift();
    if (chunk !== undefined) {
      if (this.#told > 0) this.#told--;
      else this.#hooks.chunkRead();
      return Promise.resolve({ done: false, value: chunk });
    }
    if (this.#error !== null) {
      const { reason } = this.#error;
      this.#error = null;
      return Promise.reject(reason);
    }
    if (this.#over) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  /** Leaving a `for await` loop comes here: the request is aborted and the rest thrown away. */
  return(): Promise<IteratorResult<Chunk>> {
    this.#chunks.length = this.#told = 0;
    this.#error = null;
    if (!this.#over) this.#hooks.abort();
    this.#collect = true;
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #offer(chunk: Chunk): void {
    const waiter = this.#waiting.shift();
    if (waiter === undefined) {
      this.#chunks.push(chunk);
      if (this.#reader !== 'result') return;
      this.#told++;
      this.#hooks.chunkRead();
      return;
    }
    this.#hooks.chunkRead();
    waiter.resolve({ done: false, value: chunk });
  }
}
