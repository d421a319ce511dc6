/**
 * The boundary store by itself: what `save` costs the engine thread while the writer keeps up, how long it takes when the disk
 * is slow or stands still, and how fast boundaries reach their files.
 */
import { loadavg } from 'node:os';
import { Worker } from 'node:worker_threads';
import { mlx } from '../dist/engine-thread/mlx/binding.js';
import { DEFAULT_LIMITS, sumOfStates } from '../dist/shared/session/index.js';
import { mean, median, percentile, ratioOf, round, verdict } from './lib/ratio.mjs';
import { StoreFolder } from './lib/store-folder.mjs';

const SIZES = ['4 MB', '32 MB'];
/** A p99 needs many rounds; a disk that is busy gets through fewer in the time. */
const ROUNDS = { '4 MB': { most: 400, budgetMs: 30_000, warmUp: 24 }, '32 MB': { most: 200, budgetMs: 40_000, warmUp: 12 } };
const BURSTS = { pairs: 12, budgetMs: 15_000 };
/** However slow the machine is. */
const LEAST_PAIRS = 4;
const BURST = { '4 MB': 16, '32 MB': 4 };
const MEAN_FLOOR = 1.25;
const P99_FLOOR = 2;
const THROUGHPUT_FLOOR = 0.9;

/** Beside its limits a wait has slices, and this thread must get to run. */
const TOLERANCE_MS = 250;
const { reserveWaitMs, inlineWriteLimitMs, publishGraceMs } = DEFAULT_LIMITS;
const LONGEST_MS = reserveWaitMs + inlineWriteLimitMs + publishGraceMs + TOLERANCE_MS;
/** Room for this many boundaries, so that the cap is reached at once. */
const CAP_FILES = 3;

const FSYNC_BLOCKS_MS = 30_000;
/** A disk that takes 3 s for each file of 4 MB (five pages). */
const SLOW_WRITE_MS = 600;
const SLOW_FOR_MS = 20_000;

export async function run({ pairs, log }) {
  mlx(); // main keeps the addon loaded while Workers come and go
  const scale = pairs === null ? 1 : pairs / 40;
  const info = { loadAverage: [loadavg()], limits: { reserveWaitMs, inlineWriteLimitMs, publishGraceMs } };
  const results = [];
  const add = (result, line) => {
    results.push(result);
    log(`${result.name}: ${line(result)}`);
  };
  for (const size of SIZES) for (const result of await stall(size, scale)) add(result, ratioLine);
  for (const size of SIZES) add(await throughput(size, scale), ratioLine);
  for (const disk of STALLS) add(await stalled(disk), ({ longestMs, outcomes }) => `longest save ${longestMs} ms, ${JSON.stringify(outcomes)}`);
  info.loadAverage.push(loadavg());
  return { results, info };
}

function ratioLine({ ratio, selfRatio }) {
  const figure = (of) => `${of.value ?? of.median}x [${of.low}, ${of.high}]`;
  return `${figure(ratio)}, itself ${figure(selfRatio)}`;
}

async function opened(limits, work) {
  const folder = await StoreFolder.open(limits);
  try {
    return await work(folder);
  } finally {
    await folder.close();
  }
}

/**
 * `save` against a plain copy of the same bytes, each right behind a pass: as the engine does it, with everything but the copy
 * and the publication done while the pass was computed, and (without a floor) in one call.
 */
export async function stall(size, scale) {
  const { most, budgetMs, warmUp } = ROUNDS[size];
  const rounds = { most: Math.ceil(most * scale), budgetMs: budgetMs * scale, warmUp };
  const { samples, bytes, ledger } = await opened({}, (folder) => folder.call('stall', size, rounds));
  requireExact(ledger);
  const { prepared, save, plain, again } = samples;
  const p99 = (values) => percentile(values, 0.99);
  const part = (name, of, statistic, atMost) => {
    const ratio = ratioOf(statistic, of, plain);
    const selfRatio = ratioOf(statistic, again, plain);
    const floor = atMost === null ? {} : { floor: { atMost }, ok: ratio.low <= atMost };
    return { name: `save of ${size}, ${name}`, unit: 'times a plain copy', bytes, ratio, selfRatio, ...floor };
  };
  const milliseconds = { save: figures(prepared), inOneCall: figures(save), plain: figures(plain) };
  return [
    { ...part('mean', prepared, mean, MEAN_FLOOR), ratioOfMedians: round(median(prepared) / median(plain)), milliseconds },
    part('p99', prepared, p99, P99_FLOOR),
    { ...part('in one call, mean', save, mean, null), ratioOfMedians: round(median(save) / median(plain)) },
  ];
}

function figures(ms) {
  return { mean: round(mean(ms)), p50: round(percentile(ms, 0.5)), p99: round(percentile(ms, 0.99)), max: round(Math.max(...ms)) };
}

/** Bytes per second until the files are `written`, against the same files written plainly on a thread of their own. */
export async function throughput(size, scale) {
  return opened({}, async (folder) => {
    const bytes = await folder.call('fileBytes', size);
    const raw = new Worker(new URL('./lib/raw-files.mjs', import.meta.url), { workerData: { dir: folder.dir } });
    const count = BURST[size];
    const plainly = () =>
      new Promise((resolve, reject) => {
        raw.once('message', resolve);
        raw.once('error', reject);
        raw.postMessage({ count, bytes });
      });
    const ours = () => folder.call('burst', size, count);
    raw.setMaxListeners(0);
    await plainly();
    await ours();
    const times = { ours: [], raw: [], again: [] };
    try {
      const until = performance.now() + BURSTS.budgetMs * scale;
      for (let i = 0; i < BURSTS.pairs * scale && (i < LEAST_PAIRS || performance.now() < until); i++) {
        const turns = i % 2 === 0 ? ['ours', 'raw', 'again'] : ['raw', 'ours', 'again'];
        for (const turn of turns) times[turn].push(await (turn === 'ours' ? ours() : plainly()));
      }
    } finally {
      await raw.terminate();
    }
    const settled = await folder.call('settle');
    requireExact(settled.ledger);
    const ratios = times.ours.map((ms, i) => times.raw[i] / ms);
    const self = times.again.map((ms, i) => times.raw[i] / ms);
    const megabytesPerSecond = (ms) => round((count * bytes) / 1000 / median(ms));
    return {
      ...verdict(`${count} boundaries of ${size} until written`, ratios, self, { atLeast: THROUGHPUT_FLOOR }, 'times raw write and fsync'),
      bytesOfOneFile: bytes,
      megabytesPerSecond: { ours: megabytesPerSecond(times.ours), raw: megabytesPerSecond(times.raw) },
    };
  });
}

const STALLS = [
  { name: 'an fsync that blocks 30 s', forMs: FSYNC_BLOCKS_MS - 1000, begin: (disk) => disk.slow('fsync', FSYNC_BLOCKS_MS, 1) },
  { name: 'a disk that takes 3 s for a file', forMs: SLOW_FOR_MS, begin: (disk) => disk.slow('pwrite', SLOW_WRITE_MS) },
];

/** `save` again and again while the writer is blocked, with the default limits and policy: it must come back within them. */
async function stalled({ name, forMs, begin }) {
  const size = '4 MB';
  const bytes = await opened({}, (folder) => folder.call('fileBytes', size));
  return opened({ pendingMaxBytes: CAP_FILES * bytes, overflow: 'write-through' }, async (folder) => {
    begin(folder.disk);
    const { saves, backpressureMs } = await folder.call('saves', size, forMs);
    folder.disk.heal();
    const { ledger, held } = await folder.call('settle');
    requireExact(ledger);
    if (held !== 0) throw new Error(`${held} bytes are still held when nothing is in flight`);
    const outcomes = {};
    for (const { how } of saves) outcomes[how] = (outcomes[how] ?? 0) + 1;
    const longestMs = round(Math.max(...saves.map(({ ms }) => ms)));
    return {
      name: `save with ${name}`,
      unit: 'milliseconds',
      bytes,
      longestMs,
      eachMs: saves.map(({ ms, how }) => `${how} ${round(ms)}`),
      outcomes,
      backpressureMs: round(backpressureMs),
      floor: { atMost: LONGEST_MS },
      // A run in which nothing had to wait would show nothing.
      ok: longestMs <= LONGEST_MS && backpressureMs > reserveWaitMs,
    };
  });
}

function requireExact(ledger) {
  if (ledger.pending !== 0 || sumOfStates(ledger) !== ledger.captured) throw new Error(`boundaries are not accounted for: ${JSON.stringify(ledger)}`);
}
