// Electron forbids ArrayBuffers over memory that V8 does not own: creating one fails there. What must not happen: an addon that makes one.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../helpers/paths.ts';

/** Node-API's calls, and the forms of node-addon-api that take foreign memory. */
const FORBIDDEN = [
  /napi_create_external_(arraybuffer|buffer)\b/,
  /node_api_create_external_sharedarraybuffer\b/,
  /\b(Array)?Buffer(<[^>]*>)?::New\(\s*[^,()]+,\s*[^,()]+,/,
  /\bNewBackingStore\b/,
];
const forbidden = (text: string) => FORBIDDEN.some((pattern) => pattern.test(text));

test('the search finds what it is for', () => {
  for (const text of [
    'napi_create_external_arraybuffer(env, data, n, free, nullptr, &result)',
    'napi_create_external_buffer(env, n, data, free, nullptr, &result)',
    'Napi::ArrayBuffer::New(env, data, size)',
    'Napi::Buffer<char>::New(env, data, size, free)',
    'v8::ArrayBuffer::NewBackingStore(data, size, free, nullptr)',
  ])
    expect(forbidden(text), text).toBe(true);
  for (const text of ['Napi::ArrayBuffer::New(env, size)', 'napi_create_arraybuffer(env, n, &data, &result)', 'Napi::Buffer<char>::Copy(env, data, size)'])
    expect(forbidden(text), text).toBe(false);
});

test('native sources', () => {
  const files = readdirSync(join(ROOT, 'native'), { recursive: true, encoding: 'utf8' }).filter((name) => /\.(cc|c|h)$/.test(name));
  expect(files.length).toBeGreaterThan(20);
  expect(files.filter((name) => forbidden(readFileSync(join(ROOT, 'native', name), 'utf8')))).toEqual([]);
});

test('built addons ask Node for no such function', () => {
  const folder = join(ROOT, 'build/Release');
  const addons = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith('.node')) : [];
  expect(addons).toContain('tidemark_core.node');
  for (const name of addons) {
    const symbols = readFileSync(join(folder, name)).toString('latin1');
    expect(symbols).toContain('napi_create_function');
    expect(symbols.match(/\w*create_external_\w*buffer/g), name).toBeNull();
  }
});
