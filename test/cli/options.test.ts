/**
 * How values are read from text. What must not happen: a number that is read as another number.
 */
import { describe, expect, test } from 'vitest';
import { parseBytes, parseOptions } from '../../src/cli/options.ts';
import { closest } from '../../src/cli/suggest.ts';
import { formatBytes, formatMs, table } from '../../src/cli/units.ts';
import { defaultCacheDir } from '../../src/host/default-cache-dir.ts';

describe('sizes', () => {
  test.each([
    ['0', 0],
    ['1000', 1000],
    ['20GB', 20e9],
    ['20G', 20e9],
    ['20gb', 20e9],
    ['512MiB', 512 * 1024 ** 2],
    ['1.5k', 1500],
    ['2 TiB', 2 * 1024 ** 4],
  ])('%s', (text, bytes) => expect(parseBytes(text)).toBe(bytes));
  test.each(['', 'GB', '-1', '1e9', '20XB', '1.2.3', 'twenty'])('%j is none', (text) => expect(parseBytes(text)).toBeNaN());
});

describe('options', () => {
  const options = {
    flag: { type: 'flag', help: '' },
    number: { type: 'number', value: 'X', help: '' },
    integer: { type: 'integer', short: 'i', value: 'N', help: '' },
    list: { type: 'list', value: 'T', help: '' },
    text: { type: 'text', value: 'T', help: '' },
  } as const;
  const read = (...args: string[]) => parseOptions('v', options, args).values;

  test('absent options are undefined, flags false, lists empty', () => {
    expect(read()).toEqual({ flag: false, number: undefined, integer: undefined, list: [], text: undefined });
  });
  test('negative numbers are values, not options', () => {
    expect(read('--number', '-0.5', '-i', '-3')).toMatchObject({ number: -0.5, integer: -3 });
  });
  test('lists collect, the last of a single option holds', () => {
    expect(read('--list', 'a', '--list=b', '--text', 'x', '--text', 'y')).toMatchObject({ list: ['a', 'b'], text: 'y' });
  });
  test('a value that looks like an option is taken after =', () => {
    expect(read('--text=--flag')).toMatchObject({ text: '--flag', flag: false });
  });
  test.each(['Infinity', 'NaN', '', ' ', '0x', '1,5'])('%j is no number', (text) => {
    expect(() => read(`--number=${text}`)).toThrow(/must be a number/);
  });
  test('an integer beyond what can be counted exactly is refused', () => {
    expect(() => read('--integer', '9007199254740993')).toThrow(/must be an integer/);
  });
});

test('suggestions: the nearest name, or none', () => {
  const names = ['generate', 'chat', 'cache', 'bench'];
  expect(closest('gnerate', names)).toBe('generate');
  expect(closest('gen', names)).toBe('generate');
  expect(closest('cahe', names)).toBe('cache');
  expect(closest('Chat', names)).toBe('chat');
  expect(closest('quit', names)).toBeNull();
});

test('sizes, times and tables for people', () => {
  expect([formatBytes(999), formatBytes(1000), formatBytes(20e9)]).toEqual(['999 bytes', '1.0 kB', '20.0 GB']);
  expect([formatMs(45.4), formatMs(2310)]).toEqual(['45 ms', '2.31 s']);
  expect(
    table(
      [
        ['a', 'b'],
        ['long', '1'],
        ['x', '20'],
      ],
      [1],
    ),
  ).toBe('a      b\nlong   1\nx     20');
});

test('the default cache folder is the one of the platform', () => {
  expect(defaultCacheDir('darwin', {}, '/home/u')).toBe('/home/u/Library/Caches/tidemark');
  expect(defaultCacheDir('linux', {}, '/home/u')).toBe('/home/u/.cache/tidemark');
  expect(defaultCacheDir('linux', { XDG_CACHE_HOME: '/data' }, '/home/u')).toBe('/data/tidemark');
  expect(defaultCacheDir('linux', { XDG_CACHE_HOME: 'data' }, '/home/u')).toBe('/home/u/.cache/tidemark');
});
