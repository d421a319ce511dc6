/**
 * `tidemark generate`: one answer, streamed.
 */
import type { Completion, Engine, RequestOptions } from '../host/api.ts';
import { withEngine } from './engine-session.ts';
import { Interrupted, type InterruptSignal } from './interrupts.ts';
import { readPrompt } from './prompt-input.ts';
import { ANSWER_OPTIONS, answerOptions, CACHE_OPTIONS, engineOptions, MODEL_OPTIONS } from './shared-options.ts';
import { statsLine } from './stats-line.ts';
import { type Context, defineVerb } from './verb.ts';

export const generate = defineVerb({
  name: 'generate',
  summary: 'Answers one prompt.',
  positionals: { text: '[PROMPT]', min: 0, max: 1 },
  options: {
    ...MODEL_OPTIONS,
    'prompt-file': { type: 'text', short: 'f', value: 'FILE', help: "read the prompt from a file; '-' is standard input" },
    messages: { type: 'text', value: 'FILE', help: 'a conversation: JSON array of {"role","content"}, laid out by the chat template' },
    tokens: { type: 'text', value: 'FILE', help: 'a prompt of token ids: JSON array of integers' },
    chat: { type: 'flag', help: 'lay the prompt out as a user message, by the chat template' },
    system: { type: 'text', value: 'TEXT', help: 'a system message before it; needs --chat' },
    ...ANSWER_OPTIONS,
    ...CACHE_OPTIONS,
  },
  notes: [
    'The prompt is the argument, a file, or standard input; one newline at the end of a file or of standard input is not part of it.',
    'With --json, standard output is one JSON object a line, each with a "type": load, ready, progress, chunk, durable, miss, degraded, recovered, warning, stall, result, closed. ' +
      '"durable" names how many tokens of the prompt and answer a restart will find.',
  ],
  exitCodes: { 143: 'stopped by SIGTERM' },
  examples: [
    'tidemark generate --model models/tide-5m --max-tokens 64 "The kernel schedules"',
    'tidemark generate --model models/tide-5m --json --temperature 0 < prompt.txt',
  ],
  run: async (values, positionals, context) => {
    const prompt = await readPrompt(
      {
        verb: 'generate',
        argument: positionals[0],
        promptFile: values['prompt-file'],
        messages: values.messages,
        tokens: values.tokens,
        chat: values.chat,
        system: values.system,
      },
      context.stdin,
    );
    const request = { ...prompt, ...answerOptions(values) };
    return withEngine(engineOptions('generate', values), context, async (engine) => {
      const { result, firstMs, totalMs } = await answer(engine, request, context);
      if (values.stats) context.out.note(statsLine(result, firstMs, totalMs));
      return 0;
    });
  },
});

/** Streams one answer; an interrupt, or a reader that went away, aborts it. */
async function answer(engine: Engine, request: RequestOptions, context: Context): Promise<{ result: Completion; firstMs: number; totalMs: number }> {
  const { out, interrupts } = context;
  const controller = new AbortController();
  const stop = (signal: InterruptSignal): void => controller.abort(new Interrupted(signal));
  out.whenBroken(() => controller.abort(new Interrupted('SIGPIPE')));
  const start = performance.now();
  let firstMs = Number.NaN;
  const result = await interrupts.during(stop, async () => {
    const generation = engine.generate({ ...request, signal: controller.signal });
    // The iteration below rejects with the same reason; without a handler of its own this promise would be reported as unhandled.
    const ending = generation.result.catch((error: unknown) => error as Error);
    let last = '';
    for await (const chunk of generation) {
      if (Number.isNaN(firstMs) && chunk.tokenIds.length > 0) firstMs = performance.now() - start;
      if (out.json) await out.event({ type: 'chunk', ...chunk });
      else await out.write(chunk.text);
      if (chunk.text !== '') last = chunk.text;
    }
    const completion = await ending;
    if (completion instanceof Error) throw completion;
    if (!out.json && !last.endsWith('\n')) await out.write('\n');
    return completion;
  });
  out.whenBroken(null);
  const totalMs = performance.now() - start;
  await out.event({ type: 'result', ...result });
  return { result, firstMs, totalMs };
}
