/**
 * `npm test` and `npm run test:long`: compile, run vitest under a limit of its own, end with one line of counts.
 *
 *   node scripts/test.mjs [--long] [--no-build] [vitest filters and flags]
 *
 * TIDEMARK_SEED=<n> repeats a run's random choices; without it a fresh seed is drawn and printed.
 */
import { spawn, spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { conformance, conformanceTable, spinLine } from './conformance.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const args = process.argv.slice(2);
const long = args.includes('--long') || process.env.TIDEMARK_LONG === '1';
const filters = args.filter((arg) => arg !== '--long' && arg !== '--no-build');
const reports = process.env.TIDEMARK_REPORTS ?? join(root, 'reports');
const report = join(reports, long ? 'vitest-long.json' : 'vitest.json');
const limitMs = Number(process.env.TIDEMARK_TEST_LIMIT_MS ?? (long ? 3 * 3_600_000 : 12 * 60_000));
const seed = process.env.TIDEMARK_SEED ?? String(randomInt(1, 2 ** 31));

/** The command of an installed package, run by this Node: no shell, no PATH. */
function bin(name, command = name) {
  const manifest = createRequire(import.meta.url).resolve(`${name}/package.json`);
  const entry = JSON.parse(readFileSync(manifest, 'utf8')).bin;
  return join(dirname(manifest), typeof entry === 'string' ? entry : entry[command]);
}

/** The last line of every run. Nothing is printed after it. */
function finish({ passed, failed, skipped = 0 }, code) {
  process.exitCode = code;
  process.stdout.write(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`);
}

function build() {
  console.log('building: tsc -p .');
  const result = spawnSync(process.execPath, [bin('typescript', 'tsc'), '-p', '.'], { cwd: root, stdio: 'inherit' });
  if (result.status !== 0) console.log('the build failed; no test was run');
  return result.status === 0;
}

/** The verbose reporter says each test as it ends: a long file shows where it is. */
function runVitest() {
  mkdirSync(reports, { recursive: true });
  rmSync(report, { force: true });
  const vitestArgs = ['run', '--reporter=verbose', '--reporter=json', `--outputFile.json=${report}`, ...filters];
  // Its own process group, so that the limit and Ctrl-C reach the forks as well.
  const child = spawn(process.execPath, [bin('vitest'), ...vitestArgs], {
    cwd: root,
    stdio: 'inherit',
    detached: true,
    env: { ...process.env, TIDEMARK_SEED: seed, ...(long ? { TIDEMARK_LONG: '1' } : {}) },
  });
  const killGroup = (signal) => {
    try {
      process.kill(-child.pid, signal);
    } catch (error) {
      if (error.code !== 'ESRCH') throw error;
    }
  };
  return new Promise((resolve) => {
    let ended = null;
    const timer = setTimeout(() => {
      ended = `the test run was stopped: it took longer than ${limitMs / 1000} s`;
      killGroup('SIGKILL');
    }, limitMs);
    for (const signal of ['SIGINT', 'SIGTERM']) {
      process.once(signal, () => {
        ended = `the test run was stopped by ${signal}`;
        killGroup('SIGKILL');
      });
    }
    child.once('error', (error) => {
      clearTimeout(timer);
      resolve({ code: 1, ended: `vitest did not start: ${error.message}` });
    });
    child.once('exit', (code, signal) => {
      clearTimeout(timer);
      // Forks that vitest left behind would hold the terminal and the cache folders.
      killGroup('SIGKILL');
      resolve({ code: code ?? 1, ended: ended ?? (signal ? `vitest was ended by ${signal}` : null) });
    });
  });
}

/** After a whole run: the conformance table; in the long run with its mutants applied. Returns what is wrong with it. */
async function checkConformance(result) {
  const problems = [];
  if (long) {
    console.log('mutants: node scripts/mutants.mjs');
    const { status } = spawnSync(process.execPath, [join(root, 'scripts/mutants.mjs')], {
      cwd: root,
      stdio: 'inherit',
      env: { ...process.env, TIDEMARK_REPORTS: reports },
    });
    if (status !== 0) problems.push('seeded mutants were not caught (see above)');
  }
  try {
    const entries = await conformance({ report: result, reports });
    console.log(conformanceTable(entries));
    console.log(spinLine(result));
    const missing = entries.filter(({ passed }) => !passed).map(({ check }) => check);
    if (missing.length > 0) problems.push(`no passing test for conformance checks ${missing.join(', ')}`);
  } catch (error) {
    problems.push(`the conformance report could not be made: ${error.message}`);
  }
  return problems;
}

async function summarize({ code, ended }) {
  if (ended !== null) console.log(ended);
  if (!existsSync(report)) {
    console.log('vitest wrote no report');
    return finish({ passed: 0, failed: 1 }, 1);
  }
  const result = JSON.parse(readFileSync(report, 'utf8'));
  const passed = result.numPassedTests;
  const skipped = result.numPendingTests + result.numTodoTests;
  let failed = result.numFailedTests;
  for (const file of result.testResults) {
    const name = relative(root, file.name);
    for (const test of file.assertionResults) if (test.status === 'failed') console.log(`failed: ${name}: ${test.fullName}`);
    // A file that does not load has no tests to count; it is one failure.
    if (file.status === 'failed' && !file.assertionResults.some((test) => test.status === 'failed')) {
      failed++;
      console.log(`failed: ${name}: ${(file.message ?? '').split('\n')[0]}`);
    }
  }
  // An error outside every test, or a run that was cut short.
  if (failed === 0 && (code !== 0 || ended !== null || passed === 0)) {
    failed = 1;
    console.log(passed === 0 ? 'failed: no test passed' : 'failed: the run ended with an error outside the tests (see above)');
  }
  if (filters.length === 0 && ended === null) {
    for (const problem of await checkConformance(result)) {
      failed++;
      console.log(`failed: ${problem}`);
    }
  }
  console.log(`report: ${relative(root, report)}; seed ${seed}; repeat with TIDEMARK_SEED=${seed}`);
  finish({ passed, failed, skipped }, failed === 0 ? 0 : 1);
}

console.log(`seed ${seed}${long ? ', with the long tests' : ''}`);
if (args.includes('--no-build') || build()) await summarize(await runVitest());
else finish({ passed: 0, failed: 1 }, 1);
