/**
 * `tidemark chat`. What must not happen: Ctrl-C that ends the program instead of the answer, or a conversation that
 * forgets or doubles a message.
 */
import { describe, expect, test } from 'vitest';
import { TidemarkError } from '../../src/shared/errors.ts';
import { type Answer, cli, endless, plain } from './harness.ts';

const CHAT = ['chat', '--model', 'm'];
const user = (content: string) => ({ role: 'user', content });
const assistant = (content: string) => ({ role: 'assistant', content });

describe('from a pipe', () => {
  test('each line is a message, and the conversation grows', async () => {
    const { code, stdout, engine } = await cli([...CHAT, '--system', 'be brief'], { stdin: 'one\n\ntwo\n' });
    expect(code).toBe(0);
    expect(stdout).toBe('hello world\nhello world\n');
    const system = { role: 'system', content: 'be brief' };
    expect(engine!.requests.map((request) => request.messages)).toEqual([
      [system, user('one')],
      [system, user('one'), assistant('hello world'), user('two')],
    ]);
    expect(engine!.closed).toBe(1);
  });

  test('/reset starts over, /help lists the commands, /exit leaves, an unknown command says so', async () => {
    const { code, stderr, engine } = await cli(CHAT, { stdin: 'one\n/reset\ntwo\n/help\n/what\n/exit\nthree\n' });
    expect(code).toBe(0);
    expect(engine!.requests.map((request) => request.messages)).toEqual([[user('one')], [user('two')]]);
    expect(stderr).toContain('a new conversation');
    expect(stderr).toContain('/reset  start a new conversation');
    expect(stderr).toContain('unknown command /what');
  });

  test('--stats shows cached tokens after each answer', async () => {
    const { stderr } = await cli([...CHAT, '--stats'], { stdin: 'one\n', script: { promptTokens: 20, cachedTokens: 19 } });
    expect(stderr).toMatch(/prompt 20 tokens \(19 from the cache\)/);
  });

  test('--json gives chunks and a result for each answer', async () => {
    const { events } = await cli([...CHAT, '--json'], { stdin: 'one\ntwo\n' });
    expect(events.map((event) => event.type).filter((type) => type === 'result')).toHaveLength(2);
  });

  test('an error of one request is told and its message forgotten; the next one is answered', async () => {
    let asked = 0;
    const answer: Answer = async function* () {
      if (asked++ === 0) throw new TidemarkError('PROMPT_TOO_LONG', 'too long');
      yield 'ok';
    };
    const { code, stdout, stderr, engine } = await cli(CHAT, { stdin: 'long\nshort\n', script: { answer } });
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'ok\n', stderr: 'tidemark: too long (PROMPT_TOO_LONG)\n' });
    expect(engine!.requests[1]!.messages).toEqual([user('short')]);
  });

  test('an engine that has died ends the conversation', async () => {
    // biome-ignore lint/correctness/useYield: fails before its first text
    const answer: Answer = async function* () {
      throw new TidemarkError('ENGINE_DIED', 'gone');
    };
    const { code, engine, stderr } = await cli(CHAT, { stdin: 'one\ntwo\n', script: { answer } });
    expect([code, engine!.requests.length, stderr]).toEqual([1, 1, 'tidemark: gone (ENGINE_DIED)\n']);
  });
});

describe('Ctrl-C', () => {
  /** The first answer never ends by itself, later ones do. */
  const firstEndless = (): Answer => {
    let asked = 0;
    return (request, emit) => (asked++ === 0 ? endless(request, emit) : plain('second')(request, emit));
  };

  test('stops the answer, keeps what there was of it, and the conversation goes on', async () => {
    const { code, engine } = await cli(CHAT, {
      tty: true,
      script: { answer: firstEndless() },
      during: async ({ shows, type }) => {
        await shows('> ');
        type('one\r');
        await shows('first');
        type('\x03');
        await shows('first \n');
        type('two\r');
        await shows('second');
        type('/exit\r');
      },
    });
    expect(code).toBe(0);
    expect(engine!.requests[1]!.messages).toEqual([user('one'), assistant('first '), user('two')]);
    expect(engine!.closed).toBe(1);
  });

  test('at an empty prompt leaves at the second time, with 130', async () => {
    const { code, engine } = await cli(CHAT, {
      tty: true,
      during: async ({ shows, notes, type }) => {
        await shows('> ');
        type('\x03');
        await notes('Ctrl-C again');
        type('\x03');
      },
    });
    expect([code, engine!.closed]).toEqual([130, 1]);
  });

  test('drops a line that was typed, and does not count as the first of two', async () => {
    const { code, engine } = await cli(CHAT, {
      tty: true,
      during: async ({ shows, notes, type }) => {
        await shows('> ');
        type('half a line');
        await shows('half a line');
        type('\x03');
        type('whole\r');
        await shows('world');
        type('\x03');
        await notes('Ctrl-C again');
        type('/exit\r');
      },
    });
    expect(code).toBe(0);
    expect(engine!.requests.map((request) => request.messages)).toEqual([[user('whole')]]);
  });

  test('Ctrl-D leaves with 0', async () => {
    const { code } = await cli(CHAT, {
      tty: true,
      during: async ({ shows, type }) => {
        await shows('> ');
        type('\x04');
      },
    });
    expect(code).toBe(0);
  });

  test('SIGTERM during an answer ends the program in order, with 143', async () => {
    const { code, engine } = await cli(CHAT, {
      stdin: 'one\n',
      script: { answer: endless },
      during: async ({ shows, signal }) => {
        await shows('first');
        signal('SIGTERM');
      },
    });
    expect([code, engine!.closed]).toEqual([143, 1]);
  });
});
