/**
 * `tidemark chat`: a conversation at the terminal. Ctrl-C stops the answer; at an empty prompt, twice, it leaves.
 */
import { createInterface, type Interface } from 'node:readline';
import type { ChatMessage, Engine, RequestOptions } from '../host/api.ts';
import { TidemarkError } from '../shared/errors.ts';
import { withEngine } from './engine-session.ts';
import { Interrupted, SIGNAL_EXIT_CODES } from './interrupts.ts';
import { ANSWER_OPTIONS, answerOptions, CACHE_OPTIONS, engineOptions, MODEL_OPTIONS } from './shared-options.ts';
import { statsLine } from './stats-line.ts';
import { type Context, defineVerb } from './verb.ts';

const COMMANDS = [
  '/help   show this list',
  '/reset  start a new conversation',
  '/exit   leave (so does Ctrl-D)',
  'Ctrl-C  stop the answer; twice at an empty prompt: leave',
];

export const chat = defineVerb({
  name: 'chat',
  summary: 'Holds a conversation; the model remembers it from the cache, not by reading it again.',
  options: {
    ...MODEL_OPTIONS,
    system: { type: 'text', value: 'TEXT', help: 'a system message at the start of the conversation' },
    ...ANSWER_OPTIONS,
    ...CACHE_OPTIONS,
  },
  notes: [
    `While it runs: ${COMMANDS.map((command) => command.replace(/\s+/, ' ')).join('; ')}.`,
    'When standard input is no terminal, each line of it is one message. With --json, standard output is JSON lines as in `generate`.',
  ],
  exitCodes: { 0: 'left by /exit, Ctrl-D or the end of input', 130: 'left by Ctrl-C', 143: 'stopped by SIGTERM' },
  examples: ['tidemark chat --model models/tide-5m --stats'],
  run: (values, _positionals, context) =>
    withEngine(engineOptions('chat', values), context, (engine) =>
      new Conversation(engine, context, { request: answerOptions(values), system: values.system, stats: values.stats }).run(),
    ),
});

interface ChatSettings {
  request: RequestOptions;
  system: string | undefined;
  stats: boolean;
}

/** Errors after which no further answer can come from this engine. */
const FATAL = new Set(['ENGINE_CLOSED', 'ENGINE_DIED', 'ENGINE_STUCK', 'DEVICE_LOST']);

class Conversation {
  readonly #engine: Engine;
  readonly #context: Context;
  readonly #settings: ChatSettings;
  readonly #terminal: boolean;
  readonly #readline: Interface;
  readonly #lines: string[] = [];
  #messages: ChatMessage[] = [];
  /** Stops the running answer; null while the prompt waits. */
  #answering: AbortController | null = null;
  #ended = false;
  #exitCode = 0;
  #leaveOnNext = false;
  #wake: (() => void) | null = null;

  constructor(engine: Engine, context: Context, settings: ChatSettings) {
    this.#engine = engine;
    this.#context = context;
    this.#settings = settings;
    this.#terminal = context.stdin.isTTY === true && context.out.stdout.isTTY === true && !context.out.json;
    this.#readline = createInterface({
      input: context.stdin,
      ...(this.#terminal ? { output: context.out.stdout, prompt: '> ', terminal: true } : { terminal: false }),
    });
    this.#readline.on('line', (line) => {
      this.#lines.push(line);
      this.#poke();
    });
    this.#readline.on('close', () => {
      this.#ended = true;
      this.#poke();
    });
    // A terminal in raw mode sends Ctrl-C as a key; readline turns it into this event and no signal is sent.
    this.#readline.on('SIGINT', () => this.#interrupt());
  }

  async run(): Promise<number> {
    const { interrupts, out } = this.#context;
    this.#reset();
    out.whenBroken(() => this.#leave(SIGNAL_EXIT_CODES.SIGPIPE));
    if (this.#terminal) await out.line(`${this.#engine.model.type}, ${this.#engine.model.maxContext} tokens of context. /help shows the commands.`);
    try {
      for (;;) {
        // One signal handler for each turn: a second signal in the same turn ends the program.
        const more = await interrupts.during(
          (signal) => (signal === 'SIGINT' ? this.#interrupt() : this.#leave(SIGNAL_EXIT_CODES[signal])),
          () => this.#turn(),
        );
        if (!more) return this.#exitCode;
      }
    } finally {
      out.whenBroken(null);
      this.#readline.close();
    }
  }

  /** One line of input and what it asks for; false when the conversation is over. */
  async #turn(): Promise<boolean> {
    const line = await this.#nextLine();
    if (line === null) return false;
    const text = line.trim();
    if (text === '') return true;
    if (text.startsWith('/')) return this.#command(text);
    await this.#answer(line);
    return true;
  }

  async #command(text: string): Promise<boolean> {
    const { out } = this.#context;
    switch (text) {
      case '/exit':
      case '/quit':
        return false;
      case '/reset':
        this.#reset();
        out.note('a new conversation');
        return true;
      case '/help':
        out.note(COMMANDS.join('\n'));
        return true;
      default:
        out.note(`unknown command ${text}; /help lists them`);
        return true;
    }
  }

  #reset(): void {
    const { system } = this.#settings;
    this.#messages = system === undefined ? [] : [{ role: 'system', content: system }];
  }

  async #answer(content: string): Promise<void> {
    const { out } = this.#context;
    const before = this.#messages.length;
    this.#messages.push({ role: 'user', content });
    const controller = new AbortController();
    this.#answering = controller;
    let text = '';
    const start = performance.now();
    let firstMs = Number.NaN;
    try {
      const generation = this.#engine.generate({ ...this.#settings.request, messages: this.#messages, signal: controller.signal });
      const ending = generation.result.catch((error: unknown) => error as Error);
      for await (const chunk of generation) {
        if (Number.isNaN(firstMs) && chunk.tokenIds.length > 0) firstMs = performance.now() - start;
        text += chunk.text;
        if (out.json) await out.event({ type: 'chunk', ...chunk });
        else await out.write(chunk.text);
      }
      const result = await ending;
      if (result instanceof Error) throw result;
      await out.event({ type: 'result', ...result });
      if (!out.json) await out.write('\n');
      if (this.#settings.stats) out.note(statsLine(result, firstMs, performance.now() - start));
    } catch (error) {
      if (!out.json && text !== '') await out.write('\n');
      if (error instanceof Interrupted) {
        await out.event({ type: 'stopped', text });
        if (!out.json && text === '') out.note('(stopped)');
      } else if (error instanceof TidemarkError && !FATAL.has(error.code)) {
        await out.event({ error: { code: error.code, message: error.message, details: error.details } });
        out.note(`tidemark: ${error.message} (${error.code})`);
        text = '';
      } else throw error;
    } finally {
      this.#answering = null;
    }
    // A stopped answer stays in the conversation as far as it went; a message without an answer does not.
    if (text === '') this.#messages.length = before;
    else this.#messages.push({ role: 'assistant', content: text });
  }

  #interrupt(): void {
    if (this.#answering !== null) {
      this.#answering.abort(new Interrupted('SIGINT'));
      return;
    }
    if (this.#terminal && this.#readline.line !== '') {
      // As in a shell: Ctrl-C drops what was typed.
      this.#readline.write(null, { ctrl: true, name: 'e' });
      this.#readline.write(null, { ctrl: true, name: 'u' });
      this.#leaveOnNext = false;
      return;
    }
    if (!this.#terminal || this.#leaveOnNext) {
      this.#leave(SIGNAL_EXIT_CODES.SIGINT);
      return;
    }
    this.#leaveOnNext = true;
    this.#context.out.note('\n(Ctrl-C again, Ctrl-D or /exit leaves)');
    this.#readline.prompt();
  }

  #leave(code: number): void {
    this.#exitCode = code;
    this.#ended = true;
    this.#lines.length = 0;
    this.#answering?.abort(new Interrupted('SIGINT'));
    this.#poke();
  }

  async #nextLine(): Promise<string | null> {
    if (this.#terminal) this.#readline.prompt();
    while (this.#lines.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const line = this.#lines.shift() ?? null;
    if (line !== null) this.#leaveOnNext = false;
    return line;
  }

  #poke(): void {
    this.#wake?.();
    this.#wake = null;
  }
}
