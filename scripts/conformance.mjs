/**
 * Which conformance check is shown by which tests, and which seeded mutant turns them red.
 *
 *   node scripts/conformance.mjs [--report reports/vitest.json] [--all]
 *
 * Reads vitest's JSON report (tests cite checks in their titles: `[C45] …`), the mutants of test/mutants and the results of
 * the last `scripts/mutants.mjs`, writes reports/conformance.json and prints a table; `--all` prints a line for each check.
 * Exit code 1 when a check has no passing test, or one that failed. scripts/test.mjs calls `conformance()` after a whole run.
 */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Parts of the conformance list: letter, first and last check. Those with `wanted` must all have a passing test. */
export const PARTS = [
  { letter: 'A', name: 'boundary store', first: 1, last: 15, wanted: true },
  { letter: 'B', name: 'save, serialization', first: 16, last: 36, wanted: true },
  { letter: 'C', name: 'pending buffer', first: 37, last: 51, wanted: true },
  { letter: 'D', name: 'writer', first: 52, last: 58, wanted: true },
  { letter: 'E', name: 'cleanup', first: 59, last: 69, wanted: true },
  { letter: 'F', name: 'staged files', first: 70, last: 73, wanted: true },
  { letter: 'G', name: 'block store', first: 74, last: 84, wanted: true },
  { letter: 'H', name: 'index, eviction, size', first: 85, last: 92, wanted: true },
  { letter: 'I', name: 'store job, locks, streams', first: 93, last: 103, wanted: true },
  { letter: 'J', name: 'cache clears', first: 104, last: 113, wanted: true },
  { letter: 'K', name: 'gate and admission', first: 114, last: 119, wanted: false },
  { letter: 'L', name: 'abort and teardown', first: 120, last: 126, wanted: false },
];

/** Results of the last whole run of scripts/mutants.mjs, kept with the sources; a run on this machine goes before them. */
export const RECORD = join(root, 'test/mutants/results.json');

/** `[C45]` → 45. Throws for a number that is not of that part: a citation nobody would find. */
export function citedChecks(title) {
  return [...title.matchAll(/\[([A-L])(\d+)\]/g)].map(([text, letter, digits]) => {
    const number = Number(digits);
    const part = PARTS.find((candidate) => candidate.letter === letter);
    if (number < part.first || number > part.last) throw new Error(`'${title}' cites ${text}; part ${letter} has the checks ${part.first} to ${part.last}`);
    return number;
  });
}

/** Every mutant of test/mutants, checked for its shape. */
export async function loadMutants(folder = join(root, 'test/mutants')) {
  if (!existsSync(folder)) return [];
  const mutants = [];
  for (const name of readdirSync(folder)
    .filter((entry) => entry.endsWith('.mjs'))
    .sort()) {
    mutants.push(...(await import(pathToFileURL(join(folder, name)).href)).default);
  }
  const names = mutants.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) throw new Error(`two mutants are called '${twice}'`);
  return mutants;
}

/** What a result belongs to: a mutant that was changed has none. */
export function digestOf({ edits, tests }) {
  return createHash('sha256')
    .update(JSON.stringify([edits, tests]))
    .digest('hex')
    .slice(0, 16);
}

function readJson(path) {
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : null;
}

/** @returns one entry per wanted check, as it is written to reports/conformance.json */
export async function conformance({ report, reports = join(root, 'reports') }) {
  const tests = new Map();
  for (const file of report.testResults) {
    for (const { fullName, status } of file.assertionResults) {
      for (const check of citedChecks(fullName)) {
        if (!tests.has(check)) tests.set(check, []);
        tests.get(check).push({ name: `${relative(root, file.name)} > ${fullName}`, status });
      }
    }
  }
  const mutants = await loadMutants();
  const recorded = readJson(RECORD) ?? [];
  const results = new Map([...recorded, ...(readJson(join(reports, 'mutants.json')) ?? [])].map((result) => [result.name, result]));
  const caughtOf = (mutant) => {
    const result = results.get(mutant.name);
    return result === undefined || result.digest !== digestOf(mutant) ? null : result.caught;
  };
  const entries = [];
  for (const { first, last, wanted } of PARTS) {
    for (let check = first; wanted && check <= last; check++) {
      const cited = tests.get(check) ?? [];
      const own = mutants.filter(({ checks }) => checks.includes(check));
      const caught = own.map(caughtOf);
      entries.push({
        check,
        tests: cited.map(({ name }) => name),
        passed: cited.some(({ status }) => status === 'passed') && cited.every(({ status }) => status !== 'failed'),
        mutant: own.length === 0 ? null : own.map(({ name }) => name).join('; '),
        // null: no mutant, or one that has not been applied since it was written.
        caught: own.length === 0 || caught.includes(null) ? null : caught.every(Boolean),
      });
    }
  }
  writeFileSync(join(reports, 'conformance.json'), `${JSON.stringify(entries, null, 1)}\n`);
  return entries;
}

/** One line for each part, then whatever is not as it should be. */
export function conformanceTable(entries, all = false) {
  const lines = ['conformance   checks    tests  passed   with mutants  caught'];
  for (const { letter, name, first, last, wanted } of PARTS) {
    if (!wanted) continue;
    const own = entries.filter(({ check }) => check >= first && check <= last);
    const mutated = own.filter(({ mutant }) => mutant !== null);
    const count = (list, test) => `${list.filter(test).length}/${list.length}`;
    const applied = mutated.every(({ caught }) => caught === null) ? 'not applied' : count(mutated, ({ caught }) => caught === true);
    lines.push(
      `  ${letter}  ${name.padEnd(26)} ${`${first}-${last}`.padEnd(8)} ${String(own.reduce((sum, { tests }) => sum + tests.length, 0)).padEnd(6)} ${count(own, ({ passed }) => passed).padEnd(8)} ${String(mutated.length).padEnd(13)} ${applied}`,
    );
    for (const { check, tests, passed, mutant, caught } of own) {
      if (all || !passed)
        lines.push(`     ${letter}${check}: ${tests.length === 0 ? 'no test' : `${tests.length} tests, ${passed ? 'passed' : 'NOT passed'}`}`);
      if ((all && mutant !== null) || caught === false)
        lines.push(`     ${letter}${check}: ${mutant}: ${caught === null ? 'not applied' : caught ? 'caught' : 'NOT CAUGHT'}`);
    }
  }
  return lines.join('\n');
}

/** Whether the protocol's Spin models ran, as vitest reports their tests. */
export function spinLine(report) {
  const file = report.testResults.find(({ name }) => name.endsWith('protocol-models.test.ts'));
  const tests = (file?.assertionResults ?? []).filter(({ title }) => /^(?:holds|claim .* holds|seeded bug .* is found)$/.test(title));
  const ran = tests.filter(({ status }) => status === 'passed' || status === 'failed');
  if (ran.length === 0) return `Spin: not run${tests.length > 0 ? ' (spin or a C compiler is not on the PATH)' : ''}`;
  const count = (pattern) => {
    const own = ran.filter(({ title }) => pattern.test(title));
    return `${own.filter(({ status }) => status === 'passed').length}/${own.length}`;
  };
  return `Spin: run; models that hold ${count(/^holds$/)}, temporal claims ${count(/^claim/)}, seeded bugs found ${count(/^seeded/)}`;
}

async function main() {
  const args = process.argv.slice(2);
  const path = args.includes('--report') ? args[args.indexOf('--report') + 1] : join(root, 'reports/vitest.json');
  const report = readJson(path);
  if (report === null) throw new Error(`there is no ${path}: run npm test first`);
  const entries = await conformance({ report });
  console.log(conformanceTable(entries, args.includes('--all')));
  console.log(spinLine(report));
  if (entries.some(({ passed }) => !passed)) process.exitCode = 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
