/**
 * Seeded mutants: each is a small fault in the product that a named test must find. Shows that the tests of the conformance list
 * test what they say.
 *
 *   node scripts/mutants.mjs [--only N | --only NAME] [--record]      N: a check's number; NAME: part of a mutant's name
 *
 * A mutant of test/mutants/*.mjs is
 *   { name, checks: [45], edits: [{ file: 'src/…', find: '…', replace: '…' }], tests: [{ file: 'test/…', title: '[C45]' }] }
 * The edits are made in a copy of src and test in a temporary folder, compiled there by tsc; the working tree is not touched.
 * Results go to reports/mutants.json, by name, and from there into reports/conformance.json; `--record` keeps them in
 * test/mutants/results.json as well.
 * Exit code 1 when a mutant was not caught, does not compile, or names a text or a test that is not there.
 */
import { spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { conformance, digestOf, loadMutants, RECORD } from './conformance.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const reports = process.env.TIDEMARK_REPORTS ?? join(root, 'reports');
/** Tests wait this long for what does not come; a wrong build should not cost minutes. */
const PATIENCE_MS = 2_000;
/** A run that has not ended by then is ended: the mutant has stopped a thread of the test itself. */
const LIMIT_MS = 90_000;

function bin(name, command = name) {
  const manifest = createRequire(import.meta.url).resolve(`${name}/package.json`);
  const entry = JSON.parse(readFileSync(manifest, 'utf8')).bin;
  return join(dirname(manifest), typeof entry === 'string' ? entry : entry[command]);
}

/** Source with the mutant's edits, by file. Throws when a text is not there exactly once. */
export function applyEdits(edits, read) {
  const changed = new Map();
  for (const { file, find, replace } of edits) {
    const text = changed.get(file) ?? read(file);
    const parts = text.split(find);
    if (parts.length !== 2) throw new Error(`${file} has the text ${JSON.stringify(find)} ${parts.length - 1} times, expected once`);
    changed.set(file, parts.join(replace));
  }
  return changed;
}

/** A copy of what a test run needs; what is only read is linked. */
function makeWorkspace() {
  const folder = mkdtempSync(join(tmpdir(), 'tidemark-mutants-'));
  for (const name of ['src', 'test', 'scripts', 'package.json', 'tsconfig.json', 'vitest.config.ts'])
    cpSync(join(root, name), join(folder, name), { recursive: true });
  for (const name of ['node_modules', 'build', 'models', 'vendor']) if (existsSync(join(root, name))) symlinkSync(join(root, name), join(folder, name));
  return folder;
}

/** Runs a script of an installed package in the copy; its own process group, so that the limit reaches its children too. */
function run(folder, script, args, env = {}) {
  const child = spawn(process.execPath, [script, ...args], { cwd: folder, detached: true, stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => {
      output += text;
    });
  }
  return new Promise((resolve, reject) => {
    let hung = false;
    const end = () => {
      try {
        process.kill(-child.pid, 'SIGKILL');
      } catch (error) {
        if (error.code !== 'ESRCH') throw error;
      }
    };
    const timer = setTimeout(() => {
      hung = true;
      end();
    }, LIMIT_MS);
    child.once('error', reject);
    child.once('exit', (code) => {
      clearTimeout(timer);
      end();
      resolve({ code, output, hung });
    });
  });
}

const escaped = (title) => title.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

/** What the named tests say of the build in the copy. */
async function runTests(folder, tests) {
  for (const { file, title } of tests) {
    const outcome = await runTest(folder, file, title);
    if (outcome.caught || outcome.problem !== undefined) return outcome;
  }
  return { caught: false, how: 'every named test passed' };
}

async function runTest(folder, file, title) {
  const report = join(folder, 'vitest.json');
  rmSync(report, { force: true });
  const args = ['run', file, '-t', escaped(title), '--reporter=json', `--outputFile=${report}`, '--testTimeout=15000', '--hookTimeout=15000'];
  const { code, output, hung } = await run(folder, bin('vitest'), args, { TIDEMARK_PATIENCE_MS: String(PATIENCE_MS) });
  if (hung) return { caught: true, how: `${title}: did not end` };
  if (!existsSync(report)) return { caught: code !== 0, how: `${title}: the run ended with ${code}: ${output.slice(-300)}` };
  const results = JSON.parse(readFileSync(report, 'utf8')).testResults;
  const ran = results.flatMap(({ assertionResults }) => assertionResults).filter(({ status }) => status !== 'pending' && status !== 'skipped');
  const failed = ran.find(({ status }) => status === 'failed');
  if (failed !== undefined) return { caught: true, how: `${failed.fullName}: ${(failed.failureMessages[0] ?? '').split('\n')[0].slice(0, 200)}` };
  if (ran.length === 0)
    return {
      caught: false,
      problem: `no test of ${file} has '${title}' in its title: ${results
        .map(({ message }) => message)
        .join(' ')
        .slice(0, 300)}`,
    };
  if (code !== 0) return { caught: true, how: `${title}: an error outside the tests` };
  return { caught: false, how: `${title}: passed` };
}

async function applyMutant(folder, mutant) {
  const begin = performance.now();
  const { name, checks, edits, tests } = mutant;
  let outcome;
  let changed = new Map();
  try {
    changed = applyEdits(edits, (file) => readFileSync(join(root, file), 'utf8'));
    for (const [file, text] of changed) writeFileSync(join(folder, file), text);
    const built = await run(folder, bin('typescript', 'tsc'), ['-p', '.']);
    outcome = built.code === 0 ? await runTests(folder, tests) : { caught: false, problem: `it does not compile: ${built.output.split('\n')[0]}` };
  } catch (error) {
    outcome = { caught: false, problem: error.message };
  }
  for (const file of changed.keys()) cpSync(join(root, file), join(folder, file));
  return {
    name,
    digest: digestOf(mutant),
    checks,
    tests: tests.map(({ file, title }) => `${file} > ${title}`),
    ...outcome,
    ms: Math.round(performance.now() - begin),
  };
}

function remember(results) {
  const path = join(reports, 'mutants.json');
  const before = existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : [];
  const names = new Set(results.map(({ name }) => name));
  mkdirSync(reports, { recursive: true });
  writeFileSync(path, `${JSON.stringify([...before.filter(({ name }) => !names.has(name)), ...results], null, 1)}\n`);
}

/** Keeps what is known of every mutant there is now, without times and places. */
function record(mutants) {
  const known = new Map(
    [RECORD, join(reports, 'mutants.json')]
      .flatMap((path) => (existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : []))
      .map((result) => [result.name, result]),
  );
  const results = mutants
    .map((mutant) => ({ mutant, result: known.get(mutant.name) }))
    .filter(({ mutant, result }) => result?.digest === digestOf(mutant))
    .map(({ mutant, result }) => ({ name: mutant.name, digest: result.digest, checks: mutant.checks, caught: result.caught }));
  writeFileSync(RECORD, `${JSON.stringify(results, null, 1)}\n`);
}

/** The report of the last whole test run, if there is one, gets the results. */
async function merge() {
  for (const name of ['vitest-long.json', 'vitest.json']) {
    const path = join(reports, name);
    if (existsSync(path)) return conformance({ report: JSON.parse(readFileSync(path, 'utf8')), reports });
  }
  return null;
}

async function main() {
  const at = process.argv.indexOf('--only');
  const only = at < 0 ? null : process.argv[at + 1];
  const wanted = (mutant) => only === null || mutant.checks.includes(Number(only)) || mutant.name.includes(only);
  const all = await loadMutants();
  const mutants = all.filter(wanted);
  const folder = makeWorkspace();
  const results = [];
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  for (const mutant of mutants) {
    const result = await applyMutant(folder, mutant);
    results.push(result);
    remember([result]);
    const said = result.problem !== undefined ? `PROBLEM: ${result.problem}` : result.caught ? 'caught' : `NOT CAUGHT: ${result.how}`;
    console.log(
      `${String(results.length).padStart(3)}/${mutants.length} ${result.name} [${result.checks.join(', ')}]: ${said} (${(result.ms / 1000).toFixed(1)} s)`,
    );
  }
  if (process.argv.includes('--record')) record(all);
  await merge();
  const missed = results.filter(({ caught }) => !caught);
  console.log(`mutants: ${results.length - missed.length} of ${results.length} caught`);
  if (missed.length > 0 || results.length === 0) process.exitCode = 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
