/**
 * The command line without a process: arguments in, exit code and printed text out. The engine is a stand-in whose
 * answers the test writes; the real one is used by the tests that start `dist/cli/main.js`.
 */
import { EventEmitter } from 'node:events';
import { PassThrough, Readable, Writable } from 'node:stream';
import { runCli } from '../../src/cli/cli.ts';
import { Interrupts } from '../../src/cli/interrupts.ts';
import { Output } from '../../src/cli/output.ts';
import type { EvaluateRequest, Evaluation } from '../../src/cli/verb.ts';
import type { Chunk, Completion, Engine, EngineEvents, EngineOptions, Generation, RequestOptions } from '../../src/host/api.ts';

/** What the stand-in does for one request: yields texts, may throw, may look at the signal. */
export type Answer = (request: RequestOptions, emit: (event: keyof EngineEvents, payload: unknown) => void) => AsyncGenerator<string, void, undefined>;

export interface Script {
  answer?: Answer;
  /** Instead of an engine. */
  createError?: Error;
  /** Called with the engine's options before it is there. */
  onCreate?: (options: EngineOptions) => void | Promise<void>;
  evaluate?: (request: EvaluateRequest) => Evaluation;
  lost?: number;
  promptTokens?: number;
  cachedTokens?: number;
}

/** The engine as far as the command line uses it. */
export class StandInEngine extends EventEmitter {
  readonly model = { type: 'test_model', layers: 2, vocabSize: 100, maxContext: 1000, fingerprint: 'f'.repeat(64) };
  readonly cacheDir = '/cache';
  readonly requests: RequestOptions[] = [];
  closed = 0;
  readonly #script: Script;

  constructor(script: Script) {
    super();
    this.#script = script;
  }

  generate(request: RequestOptions): Generation {
    // The caller's array goes on growing; what was sent is what counts.
    this.requests.push({ ...request, ...(request.messages === undefined ? {} : { messages: [...request.messages] }) });
    const ended = withResolvers<Completion>();
    const iterator = this.#chunks(request, ended);
    return Object.assign(iterator, { requestId: 'r1', result: ended.promise }) as unknown as Generation;
  }

  async *#chunks(request: RequestOptions, ended: Resolvers<Completion>): AsyncGenerator<Chunk, void, undefined> {
    const answer = this.#script.answer ?? plain('hello ', 'world');
    let index = 0;
    let text = '';
    const { promptTokens = 10, cachedTokens = 0 } = this.#script;
    const usage = () => ({ promptTokens, cachedTokens, completionTokens: index });
    try {
      for await (const part of answer(request, (event, payload) => this.emit(event, payload))) {
        request.signal?.throwIfAborted();
        text += part;
        yield { text: part, tokenIds: [index], index: index++ };
      }
      request.signal?.throwIfAborted();
      yield { text: '', tokenIds: [], index, finishReason: 'stop', usage: usage(), missReason: null };
      const timings = { queuedMs: 0, restoreMs: 0, prefillMs: 1, firstTokenMs: 1, totalMs: 2 };
      ended.resolve({ requestId: 'r1', text, tokenIds: [], finishReason: 'stop', usage: usage(), missReason: null, timings });
    } catch (error) {
      ended.reject(error);
      throw error;
    }
  }

  async close(): Promise<{ durable: number; lost: number }> {
    this.closed++;
    return { durable: 1, lost: this.#script.lost ?? 0 };
  }
}

interface Resolvers<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: unknown) => void;
}

function withResolvers<T>(): Resolvers<T> {
  const out = {} as Resolvers<T>;
  out.promise = new Promise<T>((resolve, reject) => Object.assign(out, { resolve, reject }));
  return out;
}

/** An answer of these texts. */
export function plain(...texts: string[]): Answer {
  return async function* () {
    yield* texts;
  };
}

/** An answer that says one word and then waits until it is aborted. */
export const endless: Answer = async function* (request) {
  yield 'first ';
  await new Promise((_resolve, reject) => {
    request.signal?.addEventListener('abort', () => reject(request.signal?.reason), { once: true });
  });
};

export interface CliRun {
  code: number;
  stdout: string;
  stderr: string;
  /** JSON lines of standard output. */
  events: Record<string, unknown>[];
  engine: StandInEngine | null;
  engineOptions: EngineOptions | null;
}

export interface CliInput {
  script?: Script;
  stdin?: string | Readable;
  tty?: boolean;
  /** Called with a way to send signals, once the command line runs. */
  during?: (session: Session) => void | Promise<void>;
}

/** A command line while it runs. */
export interface Session {
  signal(name: 'SIGINT' | 'SIGTERM'): void;
  /** Resolves once standard output holds the text. */
  shows(text: string): Promise<void>;
  /** Resolves once standard error holds the text. */
  notes(text: string): Promise<void>;
  type(text: string): void;
  readonly exits: number[];
  /** The reader of standard output goes away. */
  breakPipe(): void;
}

class Sink extends Writable {
  text = '';
  isTTY = false;
  columns = 120;
  broken = false;
  override _write(chunk: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    if (!this.broken) this.text += chunk.toString();
    done(this.broken ? Object.assign(new Error('write EPIPE'), { code: 'EPIPE' }) : null);
  }
  async has(text: string): Promise<void> {
    const deadline = performance.now() + 10_000;
    while (!this.text.includes(text)) {
      if (performance.now() > deadline) throw new Error(`'${text}' was not printed; there is:\n${this.text}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}

export async function cli(args: readonly string[], input: CliInput = {}): Promise<CliRun> {
  const { script = {}, tty = false } = input;
  const stdout = new Sink();
  const stderr = new Sink();
  const stdin = Object.assign(
    typeof input.stdin === 'object' ? input.stdin : tty ? new PassThrough() : Readable.from(input.stdin === undefined ? [] : [input.stdin]),
    {
      isTTY: tty,
      setRawMode: () => stdin,
    },
  );
  stdout.isTTY = tty;
  stderr.isTTY = tty;
  const signals = new EventEmitter();
  const exits: number[] = [];
  let engine: StandInEngine | null = null;
  let engineOptions: EngineOptions | null = null;
  let leave: (code: number) => void = () => undefined;
  const left = new Promise<number>((resolve) => {
    leave = resolve;
  });
  const exitNow = (code: number): void => {
    exits.push(code);
    leave(code);
  };
  const running = runCli(args, {
    deps: {
      createEngine: async (options) => {
        engineOptions = options;
        await script.onCreate?.(options);
        if (script.createError !== undefined) throw script.createError;
        engine = new StandInEngine(script);
        return engine as unknown as Engine;
      },
      evaluateTokens: async (_engine, request) => script.evaluate!(request),
    },
    out: new Output(stdout, stderr),
    stdin,
    env: {},
    interrupts: new Interrupts(signals, exitNow),
    exitNow,
  });
  await input.during?.({
    signal: (name) => void signals.emit(name, name),
    shows: (text) => stdout.has(text),
    notes: (text) => stderr.has(text),
    type: (text) => void (stdin as PassThrough).write(text),
    exits,
    breakPipe: () => {
      stdout.broken = true;
    },
  });
  const code = await Promise.race([running, left]);
  const events = stdout.text
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  return { code, stdout: stdout.text, stderr: stderr.text, events, engine, engineOptions };
}
