/**
 * Bad input: each is a TidemarkError with its code and a message that names the field, before anything is computed.
 *
 * Must not happen: a plain TypeError from inside, a value that is quietly changed into another one, a slot that stays taken.
 */
import { copyFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createEngine, type Engine, TidemarkError } from '../../dist/index.js';
import { cacheIn, GREEDY, openEngine, promptIds, rejection, TINY, watchEngines } from '../helpers/engines.ts';
import { listTree, tempDir } from '../helpers/temp.ts';
import { tinyParts, writeFolder } from '../models/model-folder.ts';

watchEngines();

/** Values as an app without types may pass them. */
// biome-ignore lint/suspicious/noExplicitAny: that is the point
type Any = any;

async function refused(call: () => PromiseLike<unknown>): Promise<TidemarkError> {
  const error = await rejection((async () => call())());
  expect(error).toBeInstanceOf(TidemarkError);
  return error as TidemarkError;
}

describe('engine options', () => {
  const cases: [name: string, options: Any, field: string][] = [
    ['no options', undefined, 'options'],
    ['a string for options', TINY, 'options'],
    ['no model', {}, 'options.model'],
    ['an empty model', { model: '' }, 'options.model'],
    ['a number for the model', { model: 7 }, 'options.model'],
    ['an unknown option', { model: TINY, maxTokens: 3 }, 'options.maxTokens'],
    ['an unknown cache option', { model: TINY, cache: { path: '/tmp' } }, 'options.cache.path'],
    ['true for the cache', { model: TINY, cache: true }, 'options.cache'],
    ['a list for the cache', { model: TINY, cache: [] }, 'options.cache'],
    ['an empty folder name', { model: TINY, cache: { dir: '' } }, 'options.cache.dir'],
    ['too small a limit', { model: TINY, cache: { maxBytes: 10 } }, 'options.cache.maxBytes'],
    ['a broken limit', { model: TINY, cache: { maxBytes: 2e6 + 0.5 } }, 'options.cache.maxBytes'],
    ['a block size that is no multiple of 16', { model: TINY, cache: { blockSize: 100 } }, 'options.cache.blockSize'],
    ['too small a block size', { model: TINY, cache: { blockSize: 8 } }, 'options.cache.blockSize'],
    ['an unknown persist mode', { model: TINY, cache: { persist: 'always' } }, 'options.cache.persist'],
    ['an unknown overflow policy', { model: TINY, cache: { overflow: 'wait' } }, 'options.cache.overflow'],
    ['a salt that is no string', { model: TINY, cache: { salt: 5 } }, 'options.cache.salt'],
    ['a deadline of 0', { model: TINY, cache: { restoreDeadlineMs: 0 } }, 'options.cache.restoreDeadlineMs'],
    ['an unknown device', { model: TINY, device: 'tpu' }, 'options.device'],
    ['an unknown type', { model: TINY, compute: 'float16' }, 'options.compute'],
    ['a chunk of 0', { model: TINY, prefillChunk: 0 }, 'options.prefillChunk'],
    ['no sequences', { model: TINY, maxNumSeqs: 0 }, 'options.maxNumSeqs'],
    ['half a thread', { model: TINY, threads: 0.5 }, 'options.threads'],
    ['a context of 1', { model: TINY, maxContext: 1 }, 'options.maxContext'],
    ['a listener that is none', { model: TINY, onProgress: 'log' }, 'options.onProgress'],
  ];
  test.each(cases)('%s', async (_, options, field) => {
    const error = await refused(() => createEngine(options));
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', details: { field } });
    expect(error.message).toContain(field);
  });
});

describe('model folders', () => {
  const weights = (dir: string) => join(dir, 'model.safetensors');
  const changed = (change: (dir: string) => void) => () => {
    const dir = writeFolder(tinyParts());
    change(dir);
    return dir;
  };
  const cases: [name: string, make: () => string, code: string, message: RegExp][] = [
    ['no such folder', () => join(tempDir(), 'nowhere'), 'MODEL_NOT_FOUND', /There is no folder .*nowhere/],
    ['a file', () => join(TINY, 'config.json'), 'MODEL_NOT_FOUND', /is a file/],
    ['an empty folder', () => tempDir(), 'MODEL_NOT_FOUND', /config\.json/],
    [
      'another architecture',
      () => {
        const parts = tinyParts();
        parts.config.model_type = 'gpt2';
        delete parts.config.text_config;
        return writeFolder(parts);
      },
      'MODEL_TYPE_UNSUPPORTED',
      /"gpt2".*Supported are: .*\bqwen3_5\b/,
    ],
    [
      'a missing tensor',
      () => {
        const parts = tinyParts();
        parts.tensors.delete('language_model.model.layers.1.mlp.down_proj.weight');
        return writeFolder(parts);
      },
      'MODEL_TENSOR_MISSING',
      /layers\.1\.mlp\.down_proj\.weight/,
    ],
    [
      'a tensor of another shape',
      () => {
        const parts = tinyParts();
        const name = 'language_model.model.layers.1.mlp.down_proj.weight';
        const tensor = parts.tensors.get(name)!;
        parts.tensors.set(name, { ...tensor, shape: [...tensor.shape].reverse() });
        return writeFolder(parts);
      },
      'MODEL_TENSOR_SHAPE',
      /layers\.1\.mlp\.down_proj\.weight/,
    ],
    ['a truncated file', changed((dir) => truncateSync(weights(dir), 300_000)), 'MODEL_FILE_TRUNCATED', /model\.safetensors is 300000 bytes/],
    ['a truncated header', changed((dir) => truncateSync(weights(dir), 5)), 'MODEL_FILE_TRUNCATED', /its header/],
    ['no weights', changed((dir) => rmSync(weights(dir))), 'MODEL_NOT_FOUND', /safetensors/],
    ['no tokenizer', changed((dir) => rmSync(join(dir, 'tokenizer.json'))), 'TOKENIZER_INVALID', /tokenizer\.json/],
    ['a config that is no JSON', changed((dir) => writeFileSync(join(dir, 'config.json'), '{')), 'MODEL_CONFIG_INVALID', /config\.json/],
  ];
  test.each(cases)('%s', async (_, make, code, message) => {
    const model = make();
    const error = await refused(() => createEngine({ model, cache: false, threads: 1 }));
    expect(error).toMatchObject({ code });
    expect(error.message).toMatch(message);
  });

  test('a folder that fails to load leaves no thread, no lock and no file in the cache; the right one then opens it', async () => {
    const dir = tempDir();
    const model = writeFolder(tinyParts());
    copyFileSync(join(TINY, 'config.json'), weights(model));
    await refused(() => createEngine({ model, cache: cacheIn(dir), threads: 1 }));
    expect(listTree(dir).filter((path) => path.endsWith('.safetensors'))).toEqual([]);
    const engine = await openEngine({ cache: cacheIn(dir) });
    expect(engine.health().persistence).toBe('on');
  });
});

describe('requests', () => {
  const ok = { tokens: promptIds(5), ...GREEDY, maxTokens: 2 };
  const message = { role: 'user', content: 'hello' };
  const invalid: [name: string, request: Any, field: string][] = [
    ['nothing', undefined, 'request'],
    ['a string', 'hello', 'request'],
    ['no prompt', {}, 'request'],
    ['two prompts', { prompt: 'a', tokens: [3] }, 'request'],
    ['a number for the prompt', { prompt: 5 }, 'request.prompt'],
    ['an object for the messages', { messages: message }, 'request.messages'],
    ['a string for a message', { messages: ['hello'] }, 'request.messages[0]'],
    ['no role', { messages: [message, { content: 'a' }] }, 'request.messages[1].role'],
    ['no content', { messages: [{ role: 'user' }] }, 'request.messages[0].content'],
    ['content that is no text', { messages: [{ role: 'user', content: [message] }] }, 'request.messages[0].content'],
    ['a string for the tokens', { tokens: 'abc' }, 'request.tokens'],
    ['a DataView for the tokens', { tokens: new DataView(new ArrayBuffer(8)) }, 'request.tokens'],
    ['a token that is no integer', { tokens: [3, 4.5] }, 'request.tokens[1]'],
    ['a negative token', { tokens: Int32Array.of(3, 4, -1) }, 'request.tokens[2]'],
    ['a token beyond 32 bits', { tokens: [2 ** 32 + 5] }, 'request.tokens[0]'],
    ['a hole in the tokens', { tokens: Object.assign([3], { 2: 4 }) }, 'request.tokens[1]'],
    ['BigInt tokens', { tokens: BigInt64Array.of(3n) }, 'request.tokens[0]'],
    ['template options that are none', { messages: [message], templateOptions: 'tools' }, 'request.templateOptions'],
    ['a function in the template options', { messages: [message], templateOptions: { date: () => 'now' } }, 'request'],
    ['a function in a message', { messages: [{ ...message, tool: () => 1 }] }, 'request'],
    ['an unknown option', { ...ok, max_tokens: 5 }, 'request.max_tokens'],
    ['maxTokens of 0', { ...ok, maxTokens: 0 }, 'request.maxTokens'],
    ['maxTokens as text', { ...ok, maxTokens: '5' }, 'request.maxTokens'],
    ['an empty stop string', { ...ok, stop: '' }, 'stop'],
    ['an empty one among stop strings', { ...ok, stop: ['a', ''] }, 'stop'],
    ['half a character to stop at', { ...ok, stop: '\ud83c' }, 'stop'],
    ['a number to stop at', { ...ok, stop: 5 }, 'stop'],
    ['a stop token by itself', { ...ok, stopTokens: 5 }, 'request.stopTokens'],
    ['a stop token that is none', { ...ok, stopTokens: [-3] }, 'request.stopTokens[0]'],
    ['a signal that is none', { ...ok, signal: {} }, 'request.signal'],
    ['a timeout of 0', { ...ok, timeoutMs: 0 }, 'request.timeoutMs'],
    ['an unknown persist mode', { ...ok, persist: 'sometimes' }, 'request.persist'],
    ['yes for a flag', { ...ok, ignoreEos: 'yes' }, 'request.ignoreEos'],
    ['an empty id', { ...ok, requestId: '' }, 'request.requestId'],
    ['a temperature below 0', { ...ok, temperature: -0.1 }, 'temperature'],
    ['a temperature that is none', { ...ok, temperature: Number.NaN }, 'temperature'],
    ['a temperature as text', { ...ok, temperature: '0.7' }, 'temperature'],
    ['topK of a half', { ...ok, topK: 0.5 }, 'topK'],
    ['topP of 0', { ...ok, topP: 0 }, 'topP'],
    ['topP above 1', { ...ok, topP: 1.1 }, 'topP'],
    ['minP above 1', { ...ok, minP: 2 }, 'minP'],
    ['a repetition penalty of 0', { ...ok, repetitionPenalty: 0 }, 'repetitionPenalty'],
    ['an endless repetition context', { ...ok, repetitionContext: Number.POSITIVE_INFINITY }, 'repetitionContext'],
    ['a negative seed', { ...ok, seed: -1 }, 'seed'],
    ['a seed with a fraction', { ...ok, seed: 1.5 }, 'seed'],
  ];
  const others: [name: string, request: Any, code: string, message: RegExp][] = [
    ['an empty prompt', { prompt: '' }, 'PROMPT_EMPTY', /request\.prompt/],
    ['no messages', { messages: [] }, 'PROMPT_EMPTY', /request\.messages/],
    ['no tokens', { tokens: [] }, 'PROMPT_EMPTY', /request\.tokens/],
    ['a token outside the vocabulary', { tokens: [3, 320] }, 'INVALID_ARGUMENT', /320 is outside .* \(0 to 319\)/],
    ['a prompt longer than the context', { tokens: promptIds(300) }, 'PROMPT_TOO_LONG', /300 tokens and the context holds 256/],
    ['a prompt as long as the context', { tokens: promptIds(256) }, 'PROMPT_TOO_LONG', /at most 255/],
  ];

  async function each(act: (engine: Engine, request: Any) => PromiseLike<unknown>, cases: [string, Any, (error: TidemarkError) => void][]): Promise<void> {
    const engine = await openEngine({ maxContext: 256, maxQueue: 4 });
    for (const [name, request, check] of cases) {
      const error = await refused(() => act(engine, request)).catch((wrong) => {
        throw new Error(`${name}: ${wrong.message}`);
      });
      check(error);
    }
    expect(engine.stats().tokens).toEqual({ prompt: 0, cached: 0, prefilled: 0, decoded: 0 });
    expect(engine.stats().requests).toMatchObject({ queued: 0, running: 0 });
    expect((await engine.complete(ok)).tokenIds).toHaveLength(2);
  }

  const named = (field: string) => (error: TidemarkError) => {
    expect(error.code).toBe('INVALID_ARGUMENT');
    expect(error.message).toContain(field);
    expect(String(error.details.field).startsWith(field), `${error.details.field} for ${field}`).toBe(true);
  };
  const coded = (code: string, text: RegExp) => (error: TidemarkError) => {
    expect(error.code).toBe(code);
    expect(error.message).toMatch(text);
  };
  const all: [string, Any, (error: TidemarkError) => void][] = [
    ...invalid.map(([name, request, field]): [string, Any, (error: TidemarkError) => void] => [name, request, named(field)]),
    ...others.map(([name, request, code, text]): [string, Any, (error: TidemarkError) => void] => [name, request, coded(code, text)]),
  ];

  test('complete refuses each of them', () => each((engine, request) => engine.complete(request), all));
  test('generate refuses each of them', () => each((engine, request) => engine.generate(request).next(), all));
  test('prefill refuses each of them', () => each((engine, request) => engine.prefill(request), all));
  test('countTokens refuses what is wrong with a prompt', () =>
    each(
      (engine, request) => engine.countTokens(request),
      all.filter(([, request]) => request === undefined || typeof request === 'string' || (!('maxTokens' in request) && (request.tokens?.length ?? 0) < 200)),
    ));

  test('a refused request does not disturb one that runs', async () => {
    const engine = await openEngine({ maxContext: 256 });
    const running = engine.complete({ tokens: promptIds(20), ...GREEDY, maxTokens: 200 });
    for (const [, request] of all) await refused(() => engine.complete(request));
    expect((await running).tokenIds).toHaveLength(200);
  });
});

describe('limits of close and flush', () => {
  test.each([-1, 1.5, '5', Number.NaN])('deadlineMs of %s', async (deadlineMs) => {
    const engine = await openEngine();
    for (const call of [() => engine.flush({ deadlineMs: deadlineMs as number }), () => engine.close({ deadlineMs: deadlineMs as number })]) {
      expect(await refused(call)).toMatchObject({ code: 'INVALID_ARGUMENT', details: { field: 'options.deadlineMs' } });
    }
    expect(engine.health().status).toBe('ok');
  });
});
