/**
 * `tidemark generate` around the engine. What must not happen: an answer that is cut, an engine left open, or an
 * interrupt that is taken for a success.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { TidemarkError } from '../../src/shared/errors.ts';
import { tempDir } from '../helpers/temp.ts';
import { cli, endless, plain } from './harness.ts';

const GENERATE = ['generate', '--model', 'm'];

describe('prompts', () => {
  const prompt = async (args: string[], stdin?: string) => {
    const { engine, stderr } = await cli([...GENERATE, ...args], stdin === undefined ? {} : { stdin });
    expect(stderr).toBe('');
    return engine!.requests[0]!;
  };
  const file = (text: string): string => {
    const path = join(tempDir(), 'input');
    writeFileSync(path, text);
    return path;
  };

  test('from the argument, as it is', async () => {
    expect((await prompt(['The kernel\n'])).prompt).toBe('The kernel\n');
  });
  test('from standard input and from a file, without the one newline at the end', async () => {
    expect((await prompt([], 'a\nb\n\n')).prompt).toBe('a\nb\n');
    expect((await prompt(['-'], 'a')).prompt).toBe('a');
    expect((await prompt(['--prompt-file', file('a\r\n')])).prompt).toBe('a');
  });
  test('from a conversation', async () => {
    const messages = [{ role: 'user', content: 'hi' }];
    expect((await prompt(['--messages', file(JSON.stringify(messages))])).messages).toEqual(messages);
  });
  test('from token ids', async () => {
    expect((await prompt(['--tokens', file('[1, 2, 3]')])).tokens).toEqual([1, 2, 3]);
  });
  test('as a user message', async () => {
    expect((await prompt(['--chat', '--system', 'short', 'hi'])).messages).toEqual([
      { role: 'system', content: 'short' },
      { role: 'user', content: 'hi' },
    ]);
  });
  test.each([
    ['--messages', '[]'],
    ['--messages', '[{"role": "user"}]'],
    ['--messages', 'hello'],
    ['--tokens', '[1, -2]'],
    ['--tokens', '{"ids": [1]}'],
  ])('%s with %s is refused', async (option, text) => {
    const { code, stderr } = await cli([...GENERATE, option, file(text)]);
    expect(code).toBe(2);
    expect(stderr).toContain(option);
  });
  test('on a terminal without a prompt: usage', async () => {
    const { code, stderr } = await cli(GENERATE, { tty: true });
    expect(code).toBe(2);
    expect(stderr).toMatch(/no prompt/);
  });
});

test('options reach the engine and the request; what is not given is left to their defaults', async () => {
  const args = [
    '--temperature',
    '0.5',
    '--top-k',
    '40',
    '--top-p',
    '0.9',
    '--min-p',
    '0.05',
    '--repetition-penalty',
    '1.1',
    '--repetition-context',
    '32',
    '--seed',
    '7',
  ];
  const more = ['--max-tokens', '9', '--stop', 'a', '--stop', 'b', '--ignore-eos', '--timeout-ms', '500', '--no-restore'];
  const engineArgs = [
    '--device',
    'cpu',
    '--compute',
    'float32',
    '--threads',
    '2',
    '--prefill-chunk',
    '64',
    '--max-context',
    '100',
    '--diagnose-on-signal',
    'SIGUSR2',
  ];
  const cacheArgs = ['--cache', 'dir', '--cache-max', '1GB', '--block-size', '64', '--persist', 'finish', '--salt', 's'];
  const { engine, engineOptions } = await cli([...GENERATE, ...args, ...more, ...engineArgs, ...cacheArgs, 'hi']);
  const { signal: _, ...request } = engine!.requests[0]!;
  expect(request).toEqual({
    prompt: 'hi',
    temperature: 0.5,
    topK: 40,
    topP: 0.9,
    minP: 0.05,
    repetitionPenalty: 1.1,
    repetitionContext: 32,
    seed: 7,
    maxTokens: 9,
    stop: ['a', 'b'],
    ignoreEos: true,
    timeoutMs: 500,
    noRestore: true,
  });
  expect(engineOptions).toEqual({
    model: 'm',
    device: 'cpu',
    compute: 'float32',
    threads: 2,
    prefillChunk: 64,
    maxContext: 100,
    diagnoseOnSignal: 'SIGUSR2',
    cache: { dir: 'dir', maxBytes: 1e9, blockSize: 64, persist: 'finish', salt: 's' },
    onProgress: expect.any(Function),
  });
  const bare = await cli([...GENERATE, 'hi']);
  expect(bare.engineOptions).toEqual({ model: 'm', cache: {}, onProgress: expect.any(Function) });
  expect(Object.keys(bare.engine!.requests[0]!)).toEqual(['prompt', 'signal']);
  expect((await cli([...GENERATE, '--no-cache', 'hi'])).engineOptions?.cache).toBe(false);
});

describe('output', () => {
  test('is the text and one newline, and the engine is closed', async () => {
    const { code, stdout, stderr, engine } = await cli([...GENERATE, 'hi']);
    expect({ code, stdout, stderr, closed: engine!.closed }).toEqual({ code: 0, stdout: 'hello world\n', stderr: '', closed: 1 });
    expect((await cli([...GENERATE, 'hi'], { script: { answer: plain('ends\n') } })).stdout).toBe('ends\n');
  });

  test('--stats adds a line on standard error', async () => {
    const { stdout, stderr } = await cli([...GENERATE, '--stats', 'hi'], { script: { promptTokens: 3000, cachedTokens: 2999 } });
    expect(stdout).toBe('hello world\n');
    expect(stderr).toMatch(
      /^\[prompt 3,000 tokens \(2,999 from the cache\), answer 2 tokens, first token after \d+ ms, then [\d.]+ tokens\/s, ended by stop\]\n$/,
    );
  });

  test('--json gives events in order, the result with usage, and the report of closing', async () => {
    const { code, stdout, events } = await cli([...GENERATE, '--json', 'hi'], {
      script: {
        onCreate: (options) => options.onProgress?.({ phase: 'weights', bytes: 5, totalBytes: 10 }),
        answer: async function* (_request, emit) {
          emit('progress', { requestId: 'r1', phase: 'prefill', tokens: 5, totalTokens: 10 });
          yield 'x';
          emit('durable', { requestId: 'r1', tokenCount: 256, block: 'b' });
          emit('miss', { requestId: 'r1', reason: 'checksum', detail: '', cachedTokens: 0, promptTokens: 10 });
        },
      },
    });
    expect(code).toBe(0);
    expect(
      stdout
        .split('\n')
        .slice(0, -1)
        .every((line) => line.startsWith('{')),
    ).toBe(true);
    expect(events.map((event) => event.type)).toEqual(['load', 'ready', 'progress', 'chunk', 'durable', 'miss', 'chunk', 'result', 'closed']);
    expect(events[3]).toEqual({ type: 'chunk', text: 'x', tokenIds: [0], index: 0 });
    expect(events.at(-2)).toMatchObject({ type: 'result', text: 'x', finishReason: 'stop', usage: { promptTokens: 10, completionTokens: 1 } });
    expect(events.at(-1)).toEqual({ type: 'closed', durable: 1, lost: 0 });
  });

  test('warnings and lost prefixes are notes on standard error', async () => {
    const { stderr } = await cli([...GENERATE, 'hi'], {
      script: {
        lost: 2,
        answer: async function* (_request, emit) {
          emit('degraded', { code: 'CACHE_READ_ONLY', message: 'cannot write', details: {} });
          emit('recovered', { code: 'CACHE_READ_ONLY', message: 'writing again' });
          emit('warning', { code: 'W', message: 'careful' });
          emit('stall', { thread: 'engine', sinceMs: 5000, diagnosis: 'who waits' });
          yield 'x';
        },
      },
    });
    expect(stderr.split('\n')).toEqual([
      'tidemark: warning: cannot write (CACHE_READ_ONLY)',
      'tidemark: writing again (CACHE_READ_ONLY)',
      'tidemark: warning: careful (W)',
      'tidemark: engine has been waiting for 5000 ms',
      'who waits',
      'tidemark: 2 computed prefix(es) did not reach the disk in time and will be computed again',
      '',
    ]);
  });

  test('on a terminal, loading and long prompts show a line that goes away', async () => {
    const { stdout, stderr } = await cli([...GENERATE, 'hi'], {
      tty: true,
      script: {
        onCreate: (options) => options.onProgress?.({ phase: 'weights', bytes: 5e6, totalBytes: 10e6 }),
        answer: async function* (_request, emit) {
          emit('progress', { requestId: 'r1', phase: 'prefill', tokens: 512, totalTokens: 3000 });
          yield 'x';
        },
      },
    });
    expect(stdout).toBe('x\n');
    expect(stderr).toContain('loading weights: 50 % of 10.0 MB');
    expect(stderr).toContain('reading the prompt: 512 of 3000 tokens');
    expect(stderr.endsWith('\r\x1b[K')).toBe(true);
  });
});

describe('errors', () => {
  test('of creating: one line with the code, exit code 1, details with --json', async () => {
    const script = { createError: new TidemarkError('MODEL_NOT_FOUND', "There is no folder 'm'.\nGive another.", { details: { path: 'm' } }) };
    const plainRun = await cli([...GENERATE, 'hi'], { script });
    expect({ code: plainRun.code, stdout: plainRun.stdout, stderr: plainRun.stderr }).toEqual({
      code: 1,
      stdout: '',
      stderr: "tidemark: There is no folder 'm'. Give another. (MODEL_NOT_FOUND)\n",
    });
    const json = await cli([...GENERATE, '--json', 'hi'], { script });
    expect(json.events).toEqual([{ error: { code: 'MODEL_NOT_FOUND', message: "There is no folder 'm'.\nGive another.", details: { path: 'm' } } }]);
  });

  test('of the request: the engine is closed all the same; an invalid value is wrong usage', async () => {
    const failing = (code: 'INVALID_ARGUMENT' | 'PROMPT_TOO_LONG') => ({
      // biome-ignore lint/correctness/useYield: fails before its first text
      answer: async function* (): AsyncGenerator<string> {
        throw new TidemarkError(code, 'no');
      },
    });
    const long = await cli([...GENERATE, 'hi'], { script: failing('PROMPT_TOO_LONG') });
    expect([long.code, long.engine!.closed, long.stderr]).toEqual([1, 1, 'tidemark: no (PROMPT_TOO_LONG)\n']);
    expect((await cli([...GENERATE, 'hi'], { script: failing('INVALID_ARGUMENT') })).code).toBe(2);
  });

  test('[J111] a device that takes no more work is exit code 70: whoever runs the program is to start it again', async () => {
    const { code, engine, stderr } = await cli([...GENERATE, 'hi'], {
      script: {
        // biome-ignore lint/correctness/useYield: fails before its first text
        answer: async function* (): AsyncGenerator<string> {
          throw new TidemarkError('DEVICE_LOST', 'start again');
        },
      },
    });
    expect([code, engine!.closed, stderr]).toEqual([70, 1, 'tidemark: start again (DEVICE_LOST)\n']);
  });

  test('of an unknown kind: INTERNAL, with the stack', async () => {
    const { code, stderr } = await cli([...GENERATE, 'hi'], { script: { createError: new TypeError('x is not a function') } });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^tidemark: x is not a function \(INTERNAL\)\nTypeError: x is not a function\n {4}at /);
  });
});

describe('interrupts', () => {
  test.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('%s during the answer aborts it, closes the engine and exits with %i', async (name, expected) => {
    const { code, engine, stdout, stderr } = await cli([...GENERATE, 'hi'], {
      script: { answer: endless },
      during: async ({ shows, signal }) => {
        await shows('first');
        signal(name);
      },
    });
    expect({ code, closed: engine!.closed }).toEqual({ code: expected, closed: 1 });
    expect(engine!.requests[0]!.signal!.aborted).toBe(true);
    expect(stdout).toBe('first ');
    expect(stderr).toBe(`tidemark: stopped by ${name} (INTERRUPTED)\n`);
  });

  test('a second Ctrl-C ends the program at once', async () => {
    const stubborn = async function* (): AsyncGenerator<string> {
      yield 'first';
      await new Promise(() => undefined);
    };
    const { code } = await cli([...GENERATE, 'hi'], {
      script: { answer: stubborn },
      during: async ({ shows, signal }) => {
        await shows('first');
        signal('SIGINT');
        signal('SIGINT');
      },
    });
    expect(code).toBe(130);
  });

  test('Ctrl-C while the model loads leaves at once', async () => {
    const { code, engine } = await cli([...GENERATE, 'hi'], {
      script: { onCreate: () => new Promise(() => undefined) },
      during: async ({ signal }) => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        signal('SIGINT');
      },
    });
    expect({ code, engine }).toEqual({ code: 130, engine: null });
  });

  test('a reader of standard output that goes away stops the answer quietly', async () => {
    const { code, engine, stderr } = await cli([...GENERATE, 'hi'], {
      script: {
        answer: async function* (request) {
          for (let i = 0; i < 1000 && !request.signal!.aborted; i++) {
            await new Promise((resolve) => setTimeout(resolve, 2));
            yield `${i} `;
          }
        },
      },
      during: async ({ shows, breakPipe }) => {
        await shows('1 ');
        breakPipe();
      },
    });
    expect({ code, closed: engine!.closed, stderr }).toEqual({ code: 141, closed: 1, stderr: '' });
  });

  test('a slow reader of standard output slows the answer down instead of filling memory', async () => {
    const { code, stdout } = await cli([...GENERATE, 'hi'], {
      script: { answer: plain(...Array.from({ length: 200 }, () => 'x'.repeat(1000))) },
      stdin: Readable.from([]),
    });
    expect(code).toBe(0);
    expect(stdout.length).toBe(200_001);
  });
});
