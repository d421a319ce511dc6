// The points of check:metal. Each resolves with what it saw, or rejects with what is wrong and what that means.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

const root = fileURLToPath(new URL('../..', import.meta.url));
const MODEL = join(root, 'models/tide-5m');
/** float32 on the CPU is within 2e-4 of the reference; a GPU sums in another order. */
const TOLERANCE = { cpu: 2e-4, gpu: 5e-3 };
/** Share of the chain that must be in flight after a synchronize of another stream, and what may be when we clear. */
const BARE_SHARE = 0.9;
const LEFT_MS = 1;

export const POINTS = [
  { name: 'wheel found', metalOnly: false, run: wheelFound },
  { name: 'wheel has Metal', metalOnly: true, run: wheelHasMetal },
  { name: 'metallib loaded', metalOnly: true, run: metallibLoaded },
  { name: 'device computes', metalOnly: false, run: ({ device }) => inWorker('computes', device) },
  { name: 'stream errors', metalOnly: false, run: ({ device }) => inWorker('streamErrors', device) },
  { name: 'clear timing', metalOnly: false, run: clearTiming },
  { name: 'teardown', metalOnly: false, run: teardown },
  { name: 'golden logits', metalOnly: false, run: goldenLogits },
  { name: 'restart', metalOnly: false, run: restart },
  { name: 'Mac specifics', metalOnly: true, run: macSpecifics },
];

function record() {
  const file = join(root, 'build/mlx-build.json');
  if (!existsSync(file)) throw new Error('the install script has not run; run `npm ci`');
  const { mlx, notes } = JSON.parse(readFileSync(file, 'utf8'));
  if (mlx === null) throw new Error(`the install script found no MLX: ${notes.join(' ')}`);
  return mlx;
}

/** What the addon is linked against: 'cpu', 'metal', 'cuda', or 'none'. */
export function backend() {
  try {
    return record().backend;
  } catch {
    return 'none'; // the point 'wheel found' says why
  }
}

function libraryOf(mlx) {
  const file = join(mlx.root, 'lib', process.platform === 'darwin' ? 'libmlx.dylib' : 'libmlx.so');
  if (!existsSync(file)) throw new Error(`${file} is gone; run \`npm ci\` again`);
  return file;
}

async function wheelFound() {
  const mlx = record();
  libraryOf(mlx);
  return `MLX ${mlx.version} (${mlx.backend}) from ${mlx.source}`;
}

async function wheelHasMetal() {
  const { backend } = record();
  if (backend !== 'metal') throw new Error(`this build is over the ${backend} backend; unset TIDEMARK_MLX and MLX_ROOT and run \`npm ci\` again`);
  return 'the backend is metal';
}

async function metallibLoaded({ device }) {
  const metallib = join(record().root, 'lib/mlx.metallib');
  if (!existsSync(metallib)) throw new Error(`${metallib} is missing`);
  return inWorker('kernelsFromMetallib', device);
}

async function clearTiming({ device }) {
  const found = await inWorker('clearTiming', device);
  const share = `${(100 * found.bareShare).toFixed(1)} %`;
  const figures = `chain of ${ms(found.chain)}: ${share} of it in flight after a synchronize of another stream, ${ms(found.ours)} when we clear`;
  if (found.bareShare < BARE_SHARE) throw new Error(`${figures}: the method does not see work in flight, so the figure proves nothing`);
  if (found.ours > LEFT_MS) throw new Error(`${figures}: the cache is cleared while work is in flight`);
  return figures;
}

/** Ways in which a process with work in flight can end, and the exit code of each. */
const ENDINGS = { 'worker ends': 0, 'worker throws': 0, 'worker exits': 0, terminate: 0, 'terminate in a wait': 0, 'main exits': 0, 'main throws': 1 };

async function teardown({ device, rounds }) {
  for (const [way, expected] of Object.entries(ENDINGS)) {
    for (let round = 0; round < rounds; round++) {
      const ended = await child([join(root, 'scripts/check-device/ending.mjs'), way, device], 60_000);
      if (ended.code !== expected || ended.signal !== null) {
        throw new Error(
          `'${way}', round ${round + 1}: exit code ${ended.code}, signal ${ended.signal}${ended.timedOut ? ', hung for 60 s' : ''}\n${ended.stderr}`,
        );
      }
    }
  }
  return `${Object.keys(ENDINGS).length} ways to end with work in flight, ${rounds} times each, all clean`;
}

async function goldenLogits({ device }) {
  const { createEngine } = await import('../../dist/index.js');
  const { evaluateTokens } = await import('../../dist/host/evaluate.js');
  const engine = await createEngine({ model: MODEL, device, compute: 'float32', cache: false });
  let worst = 0;
  try {
    const reference = JSON.parse(readFileSync(join(MODEL, 'reference.json'), 'utf8'));
    for (const { prompt, ids, greedy, logits_head, logsumexp, argmax } of reference) {
      const probe = await evaluateTokens(engine, { ids, greedy: greedy.length });
      const differences = [...logits_head.map((value, i) => value - probe.logitsHead[i]), logsumexp - probe.logsumexp].map(Math.abs);
      worst = Math.max(worst, ...differences);
      if (probe.argmax !== argmax) throw new Error(`'${prompt}': the best token is ${probe.argmax}, the reference has ${argmax}`);
      if (!(worst <= TOLERANCE[device])) throw new Error(`'${prompt}': logits differ by ${worst}, at most ${TOLERANCE[device]} is right`);
      const differs = greedy.findIndex((id, i) => id !== probe.greedy[i]);
      if (differs >= 0) throw new Error(`'${prompt}': greedy token ${differs} is ${probe.greedy[differs]}, the reference has ${greedy[differs]}`);
    }
    return `${reference.length} prompts, logits within ${worst.toExponential(1)}, all greedy tokens equal`;
  } finally {
    await engine.close();
  }
}

/** Two engines, one after the other, on one cache folder. */
async function restart({ device }) {
  const dir = mkdtempSync(join(tmpdir(), 'tidemark-check-'));
  try {
    const tokens = Array.from({ length: 700 }, (_, i) => 16 + ((i * 37) % 4000));
    const first = await answer(dir, device, tokens);
    const second = await answer(dir, device, tokens);
    const { cachedTokens } = second.usage;
    if (cachedTokens !== tokens.length - 1)
      throw new Error(`${cachedTokens} of ${tokens.length} tokens came from the cache (${second.missReason ?? 'no miss'})`);
    if (second.tokenIds.join() !== first.tokenIds.join()) throw new Error(`the restored answer is ${second.tokenIds}, the first one was ${first.tokenIds}`);
    return `${cachedTokens} of ${tokens.length} prompt tokens from the cache, the same answer`;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

async function answer(dir, device, tokens) {
  const { createEngine } = await import('../../dist/index.js');
  const engine = await createEngine({ model: MODEL, device, cache: { dir, maxBytes: 1e9 } });
  try {
    return await engine.complete({ tokens, maxTokens: 16, ignoreEos: true, temperature: 0, repetitionPenalty: 1 });
  } finally {
    await engine.close();
  }
}

async function macSpecifics({ device }) {
  const wired = await inWorker('wiredLimit', device);
  const { loadNativeCore } = await import('../../dist/shared/native-core.js');
  const { BACKUP_ATTRIBUTE, NEVER_INDEX } = await import('../../dist/store-worker/folder-marks.js');
  const parent = mkdtempSync(join(tmpdir(), 'tidemark-check-'));
  try {
    const dir = join(parent, 'cache');
    await answer(dir, device, [20, 21, 22, 23]);
    if (loadNativeCore()?.getAttribute(dir, BACKUP_ATTRIBUTE) == null) throw new Error('the cache folder is not left out of Time Machine backups');
    if (!existsSync(join(dir, NEVER_INDEX))) throw new Error('the cache folder is not left out of Spotlight');
    const excluded = await command('tmutil', ['isexcluded', dir]);
    if (!excluded.includes('[Excluded]')) throw new Error(`tmutil does not say that the cache folder is excluded: ${excluded.trim()}`);
    return `${wired}; cache folder left out of backups and indexing`;
  } finally {
    rmSync(parent, { recursive: true, force: true });
  }
}

/** Runs a job of worker.mjs on a thread of its own, with a bound: a job that hangs fails its point. */
export function inWorker(job, device, limitMs = 120_000) {
  // Native code reads the environment of the process.
  process.env.TIDEMARK_TEST_OPS = '1';
  const worker = new Worker(new URL('worker.mjs', import.meta.url), { workerData: { job, device } });
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new Error(`no answer within ${limitMs / 1000} s`));
      worker.terminate();
    }, limitMs);
    const settle = (done) => {
      clearTimeout(timer);
      done();
    };
    worker.once('message', (message) => settle(() => (message.error === undefined ? resolve(message.value) : reject(new Error(message.error)))));
    worker.once('error', (error) => settle(() => reject(error)));
    worker.once('exit', (code) => settle(() => reject(new Error(`its thread ended with ${code} before it answered`))));
  });
}

function child(args, limitMs) {
  return new Promise((resolve) => {
    const running = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    let stderr = '';
    let timedOut = false;
    running.stderr.setEncoding('utf8').on('data', (text) => {
      stderr = (stderr + text).slice(-2000);
    });
    const timer = setTimeout(() => {
      timedOut = true;
      running.kill('SIGKILL');
    }, limitMs);
    running.once('close', (code, signal) => {
      clearTimeout(timer);
      resolve({ code, signal, stderr, timedOut });
    });
  });
}

function command(name, args) {
  return new Promise((resolve, reject) => {
    const running = spawn(name, args, { stdio: ['ignore', 'pipe', 'ignore'] });
    let stdout = '';
    running.stdout.setEncoding('utf8').on('data', (text) => {
      stdout += text;
    });
    running.once('error', reject);
    running.once('close', () => resolve(stdout));
  });
}

function ms(value) {
  return `${value.toFixed(2)} ms`;
}
