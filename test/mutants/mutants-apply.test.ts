/**
 * The conformance report and its mutants themselves. What must not happen: a mutant whose text the product has no longer, one
 * that names a test which is gone, a citation that counts for another check, a check called passed without a test that passed.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
// @ts-expect-error plain JavaScript
import { citedChecks, conformance, conformanceTable, loadMutants, PARTS } from '../../scripts/conformance.mjs';
// @ts-expect-error plain JavaScript
import { applyEdits } from '../../scripts/mutants.mjs';
import { ROOT } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';

interface Mutant {
  name: string;
  checks: number[];
  edits: { file: string; find: string; replace: string }[];
  tests: { file: string; title: string }[];
}

/** Checks that ask for more than the reference implementation gives, and those about locks and races. */
const NEED_MUTANTS = [
  ...[6, 11, 12, 14, 15, 22, 35, 48, 49, 50, 51, 53, 55, 58, 63, 66, 69, 76, 82, 91, 95, 97, 98, 103],
  ...[105, 109, 111, 104, 106, 107, 110, 112],
  ...[40, 44, 45, 46, 47, 52, 54, 56, 61, 62, 64, 65, 67, 68, 70, 71, 93, 94, 96, 99, 101],
];

const mutants: Mutant[] = await loadMutants();
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8');

describe('mutants', () => {
  test.each(mutants)('$name', ({ checks, edits, tests }) => {
    expect(edits.length).toBeGreaterThan(0);
    for (const [file, text] of applyEdits(edits, read) as Map<string, string>) expect(text, file).not.toBe(read(file));
    for (const check of checks) expect(PARTS.some(({ first, last }: { first: number; last: number }) => first <= check && check <= last)).toBe(true);
    for (const { file, title } of tests) {
      const source = read(file);
      // A title made from a table is in the file only as far as its tag.
      const tag = title.match(/\[[A-L]\d+\]/)?.[0];
      expect(source.includes(title) || (tag !== undefined && source.includes(tag)) || /\.each\(/.test(source), `${file}: ${title}`).toBe(true);
    }
  });

  test('each check about a lock or a race, and each that asks for more than the reference gives, has one', () => {
    const have = new Set(mutants.flatMap(({ checks }) => checks));
    expect(NEED_MUTANTS.filter((check) => !have.has(check))).toEqual([]);
  });

  test('a text that is not there, or twice, is an error', () => {
    expect(() => applyEdits([{ file: 'a', find: 'x', replace: 'y' }], () => 'b')).toThrow(/0 times/);
    expect(() => applyEdits([{ file: 'a', find: 'x', replace: 'y' }], () => 'x x')).toThrow(/2 times/);
  });
});

describe('citations', () => {
  test('each is of a check that its part has', () => {
    const files = readdirSync(join(ROOT, 'test'), { recursive: true, encoding: 'utf8' }).filter(
      (name) => name.endsWith('.test.ts') && !name.startsWith('mutants'),
    );
    const cited = files.flatMap((name) => citedChecks(read(join('test', name))) as number[]);
    expect(new Set(cited.filter((check) => check <= 113)).size).toBe(113);
    expect(() => citedChecks('[A16] of the next part')).toThrow(/1 to 15/);
  });
});

describe('the report', () => {
  const reportOf = (tests: [title: string, status: string][]) => ({
    testResults: [{ name: join(ROOT, 'test/x.test.ts'), assertionResults: tests.map(([fullName, status]) => ({ fullName, status })) }],
  });
  const entryOf = async (tests: [string, string][], check: number) => {
    const entries = await conformance({ report: reportOf(tests), reports: tempDir('reports') });
    return entries.find((entry: { check: number }) => entry.check === check);
  };

  test('a check has passed when a test of it has, and none has failed', async () => {
    expect(await entryOf([['[C45][C46] both', 'passed']], 46)).toMatchObject({ tests: ['test/x.test.ts > [C45][C46] both'], passed: true });
    expect(
      await entryOf(
        [
          ['[C45] a', 'passed'],
          ['[C45] b', 'failed'],
        ],
        45,
      ),
    ).toMatchObject({ passed: false });
    expect(await entryOf([['[C45] a', 'skipped']], 45)).toMatchObject({ passed: false });
    expect(
      await entryOf(
        [
          ['[C45] a', 'passed'],
          ['[C45] b', 'skipped'],
        ],
        45,
      ),
    ).toMatchObject({ passed: true });
    expect(await entryOf([], 45)).toMatchObject({ tests: [], passed: false, mutant: expect.any(String), caught: null });
  });

  test('the table names what is missing', async () => {
    const entries = await conformance({ report: reportOf([['[A1] a', 'passed']]), reports: tempDir('reports') });
    const table = conformanceTable(entries);
    expect(table).toMatch(/A {2}boundary store +1-15 +1 +1\/15/);
    expect(table).toContain('A2: no test');
    expect(table).not.toContain('A1:');
  });
});
